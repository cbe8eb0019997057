"""The embedded PostgreSQL server: found, made, started, healed and stopped, for `hub up` and for the tests.

It listens on a Unix socket in a folder that only its own account can enter, and on no port. One folder holds it:

    data/           the cluster
    sock/           the socket, unless the path is too long for one
    postgres.log    what the server says
    lock            held by whoever starts or stops it
    location        only if the server's account cannot reach this folder: where the files are instead

PostgreSQL refuses to run as root. Then its processes run as `postgres` or `nobody`, which own the cluster.
"""

from hub.postgres.account import PostgresError
from hub.postgres.server import DATABASE, SUPERUSER, Server, destroy, existing, start

__all__ = ["DATABASE", "SUPERUSER", "PostgresError", "Server", "destroy", "existing", "start"]
