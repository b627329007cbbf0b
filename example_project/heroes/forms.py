from django import forms

from example_project.heroes.models import Hero


class HeroForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class takes its parameter only in stubs
    class Meta:
        model = Hero
        fields = ["name", "power"]
