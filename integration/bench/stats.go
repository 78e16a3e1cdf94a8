package main

import (
	"math/rand/v2"
	"slices"
)

// quantile returns the q-quantile of the values, between two by weight. It
// needs at least one value.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// ratios divides pairwise: each round's value by the same round's of the base.
func ratios(values, base []float64) []float64 {
	return pairwise(values, base, func(v, b float64) float64 { return v / b })
}

// differences subtracts pairwise.
func differences(values, base []float64) []float64 {
	return pairwise(values, base, func(v, b float64) float64 { return v - b })
}

// pairwise compares each round's value with the base's. It is nil where one is missing.
func pairwise(values, base []float64, compare func(value, base float64) float64) []float64 {
	if values == nil || base == nil {
		return nil
	}
	out := make([]float64, len(values))
	for i := range values {
		out[i] = compare(values[i], base[i])
	}
	return out
}

// medianInterval is the 95 % bootstrap interval of the values' median.
func medianInterval(values []float64) (low, high float64) {
	const resamples = 2000
	r := rand.New(rand.NewPCG(1, 2)) // the same figures give the same interval
	medians := make([]float64, resamples)
	sample := make([]float64, len(values))
	for i := range medians {
		for j := range sample {
			sample[j] = values[r.IntN(len(values))]
		}
		medians[i] = median(sample)
	}
	return quantile(medians, 0.025), quantile(medians, 0.975)
}
