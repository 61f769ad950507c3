"""Load as it arrives in life: planned in advance, sent on time, judged from the planned moment."""
