"""People, workspaces, courses, backups, sessions, rate windows, and the audit trail

A revision also writes its number into hub.schema_revision, with the oldest code that still works with it.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from hub.models.audit import TransactionId

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(REVISION_TABLE)
    op.create_table(
        "event",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("xid", TransactionId(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("statement_timestamp()"), nullable=False),
        sa.Column("workspace_id", sa.Uuid(), nullable=True),
        sa.Column("actor_id", sa.Uuid(), nullable=True),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("actor_kind", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("target_kind", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Text(), nullable=True),
        sa.Column("target_name", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("changes", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.CheckConstraint("outcome in ('done', 'refused', 'failed')", name=op.f("event_outcome_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("event_pkey")),
        schema="audit",
    )
    op.create_index("event_actor_id_idx", "event", ["actor_id", "id"], unique=False, schema="audit")
    op.create_index("event_job_id_idx", "event", ["job_id", "id"], unique=False, schema="audit")
    op.create_index("event_target_idx", "event", ["target_kind", "target_id", "id"], unique=False, schema="audit")
    op.create_index("event_workspace_id_at_idx", "event", ["workspace_id", "at", "id"], unique=False, schema="audit")
    op.create_index("event_at_idx", "event", ["at", "id"], unique=False, schema="audit")
    op.create_index("event_request_id_idx", "event", ["request_id"], unique=False, schema="audit")
    op.create_table(
        "person",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("staff", sa.Text(), nullable=True),
        sa.Column("time_zone", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("staff in ('support', 'operator')", name=op.f("person_staff_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("person_pkey")),
        schema="hub",
    )
    op.create_index("person_email_key", "person", ["email"], unique=True, schema="hub")
    op.create_table(
        "rate_window",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("hits", postgresql.ARRAY(sa.DateTime(timezone=True)), nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("allowed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("rate_window_pkey")),
        schema="hub",
    )
    op.create_index(op.f("rate_window_touched_at_idx"), "rate_window", ["touched_at"], unique=False, schema="hub")
    op.create_table(
        "workspace",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("time_zone", sa.Text(), server_default=sa.text("'UTC'"), nullable=False),
        sa.Column("backup_keep", sa.Integer(), server_default=sa.text("10"), nullable=False),
        sa.Column("backup_keep_days", sa.Integer(), server_default=sa.text("90"), nullable=False),
        sa.Column("restored_by_job", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("backup_keep between 1 and 1000", name=op.f("workspace_backup_keep_check")),
        sa.CheckConstraint("backup_keep_days between 1 and 3650", name=op.f("workspace_backup_keep_days_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("workspace_pkey")),
        schema="hub",
    )
    op.create_index("workspace_slug_key", "workspace", ["slug"], unique=True, schema="hub")
    op.create_index(
        "workspace_restored_by_job_idx",
        "workspace",
        ["restored_by_job"],
        unique=False,
        schema="hub",
        postgresql_where=sa.text("restored_by_job is not null"),
    )
    op.create_table(
        "backup",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("workspace_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'making'"), nullable=False),
        sa.Column("storage_key", sa.Text(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("format_version", sa.Integer(), nullable=True),
        sa.Column("counts", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("snapshot_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("created_by_name", sa.Text(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("check_result", sa.Text(), nullable=True),
        sa.Column("check_entry", sa.Text(), nullable=True),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("removed_by", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.CheckConstraint(
            "state in ('making', 'available', 'failed', 'cancelled', 'expired', 'deleted')",
            name=op.f("backup_state_check"),
        ),
        sa.CheckConstraint("check_result in ('ok', 'damaged', 'missing')", name=op.f("backup_check_result_check")),
        sa.CheckConstraint(
            "state <> 'available' or (storage_key is not null and bytes is not null and sha256 is not null"
            " and format_version is not null and snapshot_at is not null and finished_at is not null)",
            name=op.f("backup_available_check"),
        ),
        sa.ForeignKeyConstraint(["workspace_id"], ["hub.workspace.id"], name=op.f("backup_workspace_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("backup_pkey")),
        schema="hub",
    )
    op.create_index("backup_workspace_id_idx", "backup", ["workspace_id", "id"], unique=False, schema="hub")
    op.create_index("backup_job_id_idx", "backup", ["job_id"], unique=False, schema="hub")
    op.create_table(
        "course",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("workspace_id", sa.Uuid(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["hub.workspace.id"], name=op.f("course_workspace_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("course_pkey")),
        schema="hub",
    )
    op.create_index(
        "course_workspace_id_title_idx",
        "course",
        ["workspace_id", sa.literal_column("lower(title)"), "id"],
        unique=False,
        schema="hub",
    )
    op.create_table(
        "membership",
        sa.Column("workspace_id", sa.Uuid(), nullable=False),
        sa.Column("person_id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("added_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("role in ('admin', 'member', 'viewer')", name=op.f("membership_role_check")),
        sa.ForeignKeyConstraint(["person_id"], ["hub.person.id"], name=op.f("membership_person_id_fkey")),
        sa.ForeignKeyConstraint(["workspace_id"], ["hub.workspace.id"], name=op.f("membership_workspace_id_fkey")),
        sa.PrimaryKeyConstraint("workspace_id", "person_id", name=op.f("membership_pkey")),
        schema="hub",
    )
    op.create_index("membership_person_id_idx", "membership", ["person_id"], unique=False, schema="hub")
    op.create_table(
        "session",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("person_id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "seen_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("idle_seconds", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("user_agent", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["person_id"], ["hub.person.id"], name=op.f("session_person_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("session_pkey")),
        schema="hub",
    )
    op.create_index("session_person_id_idx", "session", ["person_id"], unique=False, schema="hub")
    op.create_index("session_token_hash_key", "session", ["token_hash"], unique=True, schema="hub")
    op.create_table(
        "tag",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("workspace_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["workspace_id"], ["hub.workspace.id"], name=op.f("tag_workspace_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("tag_pkey")),
        schema="hub",
    )
    op.create_index("tag_workspace_id_key_key", "tag", ["workspace_id", "key"], unique=True, schema="hub")
    op.create_table(
        "page",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("course_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["course_id"], ["hub.course.id"], name=op.f("page_course_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("page_pkey")),
        schema="hub",
        postgresql_with={"fillfactor": "85"},
    )
    op.create_index("page_course_id_position_idx", "page", ["course_id", "position", "id"], unique=False, schema="hub")
    op.create_table(
        "support_visit",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("workspace_id", sa.Uuid(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["hub.session.id"], name=op.f("support_visit_session_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["workspace_id"], ["hub.workspace.id"], name=op.f("support_visit_workspace_id_fkey")),
        sa.PrimaryKeyConstraint("session_id", "workspace_id", name=op.f("support_visit_pkey")),
        schema="hub",
    )
    op.create_table(
        "page_tag",
        sa.Column("page_id", sa.Uuid(), nullable=False),
        sa.Column("tag_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("added_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column(
            "added_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("statement_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["page_id"], ["hub.page.id"], name=op.f("page_tag_page_id_fkey"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tag_id"], ["hub.tag.id"], name=op.f("page_tag_tag_id_fkey")),
        sa.PrimaryKeyConstraint("page_id", "tag_id", name=op.f("page_tag_pkey")),
        schema="hub",
    )
    op.create_index("page_tag_tag_id_idx", "page_tag", ["tag_id"], unique=False, schema="hub")
    op.execute(AUDIT)


REVISION_TABLE = """
create table hub.schema_revision (
    revision        integer primary key,
    compatible_from integer not null,
    applied_at      timestamptz not null default statement_timestamp()
);
insert into hub.schema_revision (revision, compatible_from) values (1, 1);
revoke insert, update, delete on hub.schema_revision, hub.alembic_version from hub_app;
"""

# The function runs as its owner, so hub_app needs no INSERT on the table and cannot choose id, time or transaction.
# Triggers fire ALWAYS: not even a session in replica role gets past them.
AUDIT = """
create sequence audit.event_id_seq owned by audit.event.id;

create function audit.record(
    workspace_id uuid, actor_id uuid, actor_name text, actor_kind text, channel text, address text, request_id text,
    action text, outcome text, target_kind text, target_id text, target_name text, job_id bigint, changes jsonb
) returns bigint language sql security definer set search_path = '' as $$
    insert into audit.event (
        id, xid, at, workspace_id, actor_id, actor_name, actor_kind, channel, address, request_id,
        action, outcome, target_kind, target_id, target_name, job_id, changes
    ) values (
        nextval('audit.event_id_seq'), pg_current_xact_id(), clock_timestamp(), $1, $2, $3, $4, $5, $6, $7,
        $8, $9, $10, $11, $12, $13, $14
    ) returning id
$$;
grant execute on function audit.record to hub_app;

create function audit.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'the audit trail is append-only';
end
$$;
create trigger event_is_append_only before update or delete on audit.event
    for each statement execute function audit.refuse_change();
create trigger event_is_never_truncated before truncate on audit.event
    for each statement execute function audit.refuse_change();
alter table audit.event enable always trigger event_is_append_only;
alter table audit.event enable always trigger event_is_never_truncated;
"""
