"""Commands about the way to the controller: login and examination."""
