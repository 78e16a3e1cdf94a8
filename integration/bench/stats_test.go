package main

import "testing"

func TestQuantilesLieBetweenValues(t *testing.T) {
	values := []float64{4, 1, 3, 2}
	for q, want := range map[float64]float64{0: 1, 0.25: 1.75, 0.5: 2.5, 1: 4} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
	if got := median([]float64{7}); got != 7 {
		t.Errorf("median of one = %v", got)
	}
}

func TestRatiosArePaired(t *testing.T) {
	got := ratios([]float64{2, 9}, []float64{1, 3})
	if len(got) != 2 || got[0] != 2 || got[1] != 3 {
		t.Errorf("got %v", got)
	}
}

func TestIntervalHoldsTheMedian(t *testing.T) {
	values := make([]float64, 100)
	for i := range values {
		values[i] = float64(i)
	}
	low, high := medianInterval(values)
	if low >= 49.5 || high <= 49.5 || low < 30 || high > 70 {
		t.Errorf("interval %v to %v around 49.5", low, high)
	}
}
