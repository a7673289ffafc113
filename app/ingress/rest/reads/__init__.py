"""Routes that pages for people read by: rollouts, drift, recorded requests, configurations as text, cost."""

from app.ingress.rest.openapi.api import RestApi
from app.ingress.rest.openapi.bodies import JsonBodies
from app.ingress.rest.reads.config_text import add_config_text_routes
from app.ingress.rest.reads.cost import add_cost_route
from app.ingress.rest.reads.states import add_state_routes
from app.ingress.rest.reads.tape import add_tape_routes
from app.ingress.service.interface import InferenceService


def add_reads(api: RestApi, service: InferenceService, max_input_size: int) -> None:
    """Register the routes; bodies have `max_input_size` bytes at most."""
    bodies = JsonBodies(max_input_size)
    add_tape_routes(api, service, bodies)
    add_config_text_routes(api, service, bodies)
    add_state_routes(api, service)
    add_cost_route(api, service)
