"""What traffic looks like, how it is sent (Locust), and the records it leaves behind."""
