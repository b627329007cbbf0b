from django.urls import path
from django.views.generic import RedirectView

from example_project.heroes import views

app_name = "heroes"
urlpatterns = [
    path("", RedirectView.as_view(pattern_name="heroes:heroes")),
    path("heroes/", views.heroes, name="heroes"),
    path("received/", views.received, name="received"),
]
