"""The coordinators: groups, transactions and share state, each an event-sourced machine on one runtime."""
