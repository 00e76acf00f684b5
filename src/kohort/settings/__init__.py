"""How settings and arguments are declared, validated and documented."""
