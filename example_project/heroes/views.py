"""Pages for people and JSON for programs, under the same addresses.

``GET`` answers what ``Accept`` prefers. ``POST /heroes/`` takes the page's form, guarded by its CSRF token, or JSON::

    curl -X POST -H 'Content-Type: application/json' -d '{"name": "Ada", "power": "engines"}' localhost:8000/heroes/

JSON needs no token: another site's page cannot send this content type without a preflight request, which is not
answered, and no cookie gives the request any permission.
"""

import json
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.cache import patch_vary_headers
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods, require_safe

from example_project.heroes.creation import create_hero
from example_project.heroes.forms import HeroForm
from example_project.heroes.models import Hero, Received

SHOWN_MAX = 100


@csrf_exempt  # decided per content type below
@require_http_methods(["GET", "HEAD", "POST"])
def heroes(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return _post_json(request) if request.content_type == "application/json" else _post_form(request)
    return _list(request, Hero.objects.all(), "heroes", {"form": HeroForm()})


@require_safe
def received(request: HttpRequest) -> HttpResponse:
    return _list(request, Received.objects.all(), "received", {})


@csrf_protect
def _post_form(request: HttpRequest) -> HttpResponse:
    form = HeroForm(request.POST)
    if not form.is_valid():
        return _list(request, Hero.objects.all(), "heroes", {"form": form}, status=400)
    hero = create_hero(**form.cleaned_data)
    messages.success(request, f"{hero.name} is a hero now. The harvester sends the message about it to Kafka.")
    return redirect("heroes:heroes")


def _post_json(request: HttpRequest) -> JsonResponse:
    try:
        data = json.loads(request.body)
        json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is JSON, and no text
    except ValueError:  # also for bytes that are not text
        return _refusal('The body is not JSON. Send e.g. {"name": "Ada", "power": "engines"}.')
    if not isinstance(data, dict):
        return _refusal('The body is not an object. Send e.g. {"name": "Ada", "power": "engines"}.')
    form = HeroForm(data)
    if not form.is_valid():
        return JsonResponse({"errors": form.errors.get_json_data()}, status=400)
    return JsonResponse(create_hero(**form.cleaned_data).as_dict(), status=201)


def _refusal(message: str) -> JsonResponse:
    return JsonResponse({"errors": {"__all__": [{"message": message, "code": "invalid"}]}}, status=400)


@csrf_protect  # sets the cookie that belongs to the form's token
def _list(
    request: HttpRequest, rows: "QuerySet[Any]", name: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """The newest rows first."""
    shown = list(rows.order_by("-pk")[:SHOWN_MAX])
    response: HttpResponse
    if request.get_preferred_type(["text/html", "application/json"]) == "application/json":
        response = JsonResponse({name: [row.as_dict() for row in shown]}, status=status)
    else:
        page = {name: shown, "total": rows.count(), "page": name, **context}
        response = render(request, f"heroes/{name}.html", page, status=status)
    patch_vary_headers(response, ["Accept"])
    return response
