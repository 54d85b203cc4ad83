"""brimful in other people's trainers: a thin file for each."""
