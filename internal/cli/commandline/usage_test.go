package commandline

import (
	"errors"
	"testing"

	"github.com/urfave/cli/v3"
)

func TestUsageErrorsNameNoGoFunction(t *testing.T) {
	for text, want := range map[string]string{
		`invalid value "x" for flag -n: strconv.ParseInt: parsing "x": invalid syntax`:        `invalid value "x" for flag -n: invalid syntax`,
		`invalid value "\": " for flag -n: strconv.ParseBool: parsing "\": ": value out of x`: `invalid value "\": " for flag -n: value out of x`,
		"flag needs an argument: -strconv.":                                                   "flag needs an argument: -strconv.",
	} {
		if got := withoutGoFunctions(text); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestUnknownFlagsHaveTheirDashes(t *testing.T) {
	for flag, want := range map[string]string{"-e": "unknown flag -e", "-env": "unknown flag --env"} {
		if got := UnknownFlag(&cli.Command{}, errors.New("flag provided but not defined: "+flag)); got.Error() != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}
