"""Interrupts: off the CPUs that are somebody's own, and back; and an ``irqbalance`` beside."""

from pinfold.adapters.irq.interrupts import KernelInterrupts

__all__ = ["KernelInterrupts"]
