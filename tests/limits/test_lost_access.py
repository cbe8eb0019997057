"""Who may no longer look hears nothing more: the stream of an ended session or membership closes at the next beat."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.factories import make_course, run, start_tagging
from tests.limits.harness import Client, Site, Timer, measured
from tests.limits.streams import Stream, Streams

# Far more than a job does between two beats.
PAGES = 60_000
DISABLE_PERSON = "update hub.person set enabled = false where id = :person"
DISABLE_MEMBERSHIP = "update hub.membership set enabled = false where person_id = :person"
REMOVE_MEMBERSHIP = "delete from hub.membership where person_id = :person"


def test_streams_end_by_the_next_beat_after_access_is_lost(site: Callable[..., Site], streams: Streams) -> None:
    hub = site(replicas=1, workers=1)
    team = hub.team()
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, PAGES)).job_id
    path = f"/w/{team.workspace.slug}/jobs/{job_id}/events"
    people = {name: hub.add_admin(team) for name in ("signed out", "disabled", "no member", "removed")}
    clients = {name: hub.client(person) for name, person in people.items()}
    stays = hub.client(team.admin)

    def watch(client: Client) -> Stream:
        return streams.open(hub.web[0].url + path, client.headers)[0]

    control = watch(stays)
    lost = {name: watch(client) for name, client in clients.items()}
    streams.wait(lambda: all("progress" in stream.names() for stream in (control, *lost.values())))
    timer = Timer()
    assert clients["signed out"].post("/sign-out").status_code == 200
    run(hub.database, DISABLE_PERSON, person=people["disabled"].id)
    run(hub.database, DISABLE_MEMBERSHIP, person=people["no member"].id)
    run(hub.database, REMOVE_MEMBERSHIP, person=people["removed"].id)
    beats = {name: stream.names().count("beat") for name, stream in lost.items()}
    known = control.names().count("beat")

    streams.wait(lambda: all(stream.ended for stream in lost.values()))
    measured("until the streams ended, s", timer.seconds)
    for name, stream in lost.items():
        # The beat after the loss is the one that closes the stream instead of telling anything.
        assert stream.names().count("beat") == beats[name], name
        assert stream.names()[-1] == "bye", name
        assert json.loads(stream.events[-1].data)["reason"] == "access", name
    streams.wait(lambda: control.names().count("beat") > known)
    assert not control.ended

    again = {name: client.get(path).status_code for name, client in clients.items()}
    assert again == {"signed out": 401, "disabled": 401, "no member": 404, "removed": 404}
    polled = {name: client.get(path.replace("/events", "/live")).status_code for name, client in clients.items()}
    assert polled == again
    assert stays.cancel(team, job_id).status_code == 200
    streams.wait(lambda: control.names()[-1] == "end")
