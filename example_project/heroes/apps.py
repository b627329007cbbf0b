from django.apps import AppConfig


class HeroesConfig(AppConfig):
    name = "example_project.heroes"
    label = "heroes"
    default_auto_field = "django.db.models.BigAutoField"
