package seccomp

import "github.com/opencontainers/runtime-spec/specs-go"

// A pattern matches the numbers whose bits in mask equal value. A filter knows no
// "not equal to" for some bits of an argument. So the allowed numbers are written
// as patterns that leave out the refused ones.
type pattern struct{ mask, value uint64 }

// condition is the condition that the argument index matches the pattern.
func (p pattern) condition(index uint) specs.LinuxSeccompArg { return bits(index, p.mask, p.value) }

// lowBits is the pattern of the numbers of that many bits, where the kernel uses 32.
func lowBits(width int) pattern { return pattern{mask: low32 &^ (1<<width - 1)} }

// without gives patterns that together match each number of a pattern whose lowest
// bits, width of them, are none of the refused numbers. No two patterns match the
// same number.
func without(p pattern, width int, refused ...uint64) []pattern {
	low := uint64(1)<<width - 1
	inside := false
	for _, number := range refused {
		inside = inside || (number^p.value)&p.mask&low == 0
	}
	if !inside {
		return []pattern{p}
	}
	for bit := (low + 1) >> 1; bit > 0; bit >>= 1 {
		if p.mask&bit == 0 {
			zero := pattern{p.mask | bit, p.value}
			one := pattern{p.mask | bit, p.value | bit}
			return append(without(zero, width, refused...), without(one, width, refused...)...)
		}
	}
	return nil
}
