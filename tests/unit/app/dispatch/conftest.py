"""Replicas to route to, as for the channels below."""

from tests.unit.app.routing.conftest import start as start
