"""Tables and templates → reports, page and paper."""
