"""Tables, figures and the page about runs."""
