package resp

// Keys is the position of a command's keys, in the format of COMMAND INFO.
type Keys struct{ First, Last, Step int }

// Count returns the number of keys among n arguments.
func (k Keys) Count(n int) int {
	switch {
	case k.Step == 0:
		return 0
	case k.Last < 0:
		return (n - k.First) / k.Step
	}
	return (k.Last-k.First)/k.Step + 1
}
