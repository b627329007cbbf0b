"""``python example_project/manage.py test example_project.orders``, with the settings of the orders service."""
