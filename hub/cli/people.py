"""`hub workspace` and `hub user`."""

from __future__ import annotations

import click

from hub.cli import base


@click.group()
def workspace() -> None:
    """Workspaces."""


@workspace.command("add")
@click.argument("slug")
@click.option("--name", default="", help="What people read; default: the slug.")
@base.acting_as
@base.as_json
def workspace_add(slug: str, name: str, email: str | None, as_json: bool) -> None:
    """Make a workspace whose address is /w/SLUG/."""
    from hub.models import people

    with base.transaction(email) as (session, actor):
        added = people.add_workspace(session, slug, name, actor)
        report = {"id": str(added.id), "slug": added.slug, "name": added.name}
    base.answer(report, as_json, f"Workspace {added.slug} is there.")


@workspace.command("disable")
@click.argument("slug")
@base.acting_as
@base.as_json
def workspace_disable(slug: str, email: str | None, as_json: bool) -> None:
    """Close a workspace for everybody; nothing in it is lost."""
    _set_workspace(slug, False, email, as_json)


@workspace.command("enable")
@click.argument("slug")
@base.acting_as
@base.as_json
def workspace_enable(slug: str, email: str | None, as_json: bool) -> None:
    """Open a workspace again."""
    _set_workspace(slug, True, email, as_json)


@click.group()
def user() -> None:
    """People."""


@user.command("add")
@click.argument("address", metavar="EMAIL")
@click.option("--name", default="", help="What people read; default: the part before the @.")
@click.option("--workspace", "slug", help="Make them a member of this workspace.")
@click.option("--role", type=click.Choice(["admin", "member", "viewer"]), help="Their role there.")
@click.option("--staff", type=click.Choice(["support", "operator"]), help="Make them staff.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@base.acting_as
@base.as_json
def user_add(
    address: str,
    name: str,
    slug: str | None,
    role: str | None,
    staff: str | None,
    password_stdin: bool,
    email: str | None,
    as_json: bool,
) -> None:
    """Add a person, or give one who is here already a role in a workspace."""
    from hub.models import people, person

    if (slug is None) != (role is None):
        raise click.UsageError("--workspace and --role go together.")
    with base.transaction(email) as (session, actor):
        found = person.find(session, address)
        if found is None or slug is None or password_stdin:
            address = people.valid_email(address)
            hashed = person.hash_password(people.valid_password(base.password(password_stdin)))
            found = people.add_person(session, address, hashed, actor=actor, name=name, staff=staff)
        if slug is not None:
            people.add_member(session, base.workspace(session, slug), found, role, actor)
        report = {"id": str(found.id), "email": found.email, "name": found.name, "staff": found.staff}
        report |= {"workspace": slug, "role": role}
    base.answer(report, as_json, f"{found.email} is there.")


@user.command("disable")
@click.argument("address", metavar="EMAIL")
@base.acting_as
@base.as_json
def user_disable(address: str, email: str | None, as_json: bool) -> None:
    """Keep a person out of everything and end their sessions at once."""
    _set_person(address, False, email, as_json)


@user.command("password")
@click.argument("address", metavar="EMAIL")
@click.option("--password-stdin", is_flag=True, required=True, help="Read the new password from standard input.")
@base.acting_as
@base.as_json
def user_password(address: str, password_stdin: bool, email: str | None, as_json: bool) -> None:
    """Give a person a new password and end their sessions."""
    from hub.models import people

    password = base.password(password_stdin)
    with base.transaction(email) as (session, actor):
        people.change_password(session, base.person(session, address), password, actor, keep=None)
    base.answer({"email": address, "changed": True}, as_json, f"{address} has a new password.")


@user.command("enable")
@click.argument("address", metavar="EMAIL")
@base.acting_as
@base.as_json
def user_enable(address: str, email: str | None, as_json: bool) -> None:
    """Let a person in again."""
    _set_person(address, True, email, as_json)


def _set_workspace(slug: str, enabled: bool, email: str | None, as_json: bool) -> None:
    from hub.models import people

    with base.transaction(email) as (session, actor):
        changed = people.set_workspace_enabled(session, base.workspace(session, slug), enabled, actor)
    state = "enabled" if enabled else "disabled"
    base.answer({"slug": slug, "enabled": enabled, "changed": changed}, as_json, f"Workspace {slug} is {state}.")


def _set_person(address: str, enabled: bool, email: str | None, as_json: bool) -> None:
    from hub.models import people

    with base.transaction(email) as (session, actor):
        found = base.person(session, address)
        changed = people.set_person_enabled(session, found, enabled, actor)
    state = "enabled" if enabled else "disabled"
    base.answer({"email": found.email, "enabled": enabled, "changed": changed}, as_json, f"{found.email} is {state}.")
