"""Contrast as WCAG 2.2 defines it, and how the page turns a drawing in the dark."""


def luminance(pixel):
    """The relative luminance of red, green and blue in 0 to 255."""
    parts = [c / 255 for c in pixel[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(*colours):
    """The contrast of two pixels, from 1 to 21."""
    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def pixel_of(colour):
    """'#0b5c9e' as red, green and blue."""
    digits = colour.removeprefix("#")
    return tuple(int(digits[i : i + 2], 16) for i in (0, 2, 4))


# The matrix of hue-rotate(180deg) in the specification of CSS filters: cos is -1, sin is 0.
HALF_TURN = ((-0.574, 1.430, 0.144), (0.426, 0.430, 0.144), (0.426, 1.430, -0.856))


def turned(pixel, exponent):
    """A pixel after invert(1), hue-rotate(180deg) and a gamma with this exponent."""
    inverse = [1 - c / 255 for c in pixel]
    rotated = (sum(w * c for w, c in zip(row, inverse, strict=True)) for row in HALF_TURN)
    return tuple(255 * min(max(c, 0), 1) ** exponent for c in rotated)
