"""Studies, measurements and checks of the project; `python -m lab` lists the commands."""
