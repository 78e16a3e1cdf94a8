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

func TestDifferencesArePaired(t *testing.T) {
	got := differences([]float64{2, 9}, []float64{1, 3})
	if len(got) != 2 || got[0] != 1 || got[1] != 6 {
		t.Errorf("got %v", got)
	}
	if differences(nil, []float64{1}) != nil || differences([]float64{1}, nil) != nil {
		t.Error("what is missing has differences")
	}
}

func TestLimitIsOfTheMedian(t *testing.T) {
	values := series{"a": {3, 1, 2}, "b": {1, 1, 1}}
	for want, l := range map[string]limit{
		"- a at most 2 ms: 2.000, holds":                          {"a", "", 2},
		"- a at most 0.5 ms beyond b: 1.000, missed":              {"a", "b", 0.5},
		"- c at most 1 ms: not measured, one is missing":          {"c", "", 1},
		"- a at most 1 ms beyond c: not measured, one is missing": {"a", "c", 1},
	} {
		if got := l.verdict(values, "ms"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
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
