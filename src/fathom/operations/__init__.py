"""Operations of each framework."""
