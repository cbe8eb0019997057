"""What gunicorn loads: builds the app, nothing more."""

from hub.web import create_app

app = create_app()
