"""What tests stand on: peers, worlds, stand-ins and the contracts that several fulfil."""
