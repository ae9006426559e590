"""Who is told of every frame besides the screen: the events log, messages, the newest frame for `status`."""
