package rules

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ParseFile reads rules from a file: one rule in a line, with "deny " before the rules that deny.
// A comment begins with #, at the beginning of a line or after white space. The texts that ParseFile
// returns are those of --allow and --deny. The file's name is for errors.
func ParseFile(name string, r io.Reader) (allow, deny []string, err error) {
	var wrong faults
	lines, number := bufio.NewScanner(r), 0
	for lines.Scan() {
		number++
		line := lines.Text()
		if number == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // the byte order mark of editors on Windows
		}
		text := strings.TrimSpace(withoutComment(line))
		if text == "" {
			continue
		}
		rule, isDeny := withoutDeny(text)
		if err := checkLine(rule); err != nil {
			wrong.add(fmt.Errorf("%s:%d: %w", name, number, err))
		}
		if isDeny {
			deny = append(deny, rule)
		} else {
			allow = append(allow, rule)
		}
		if len(allow)+len(deny) > MaxRules {
			return nil, nil, fmt.Errorf("%s:%d: there are more than %d rules", name, number, MaxRules)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, nil, fmt.Errorf("%s:%d: the line is longer than %d bytes", name, number+1, bufio.MaxScanTokenSize)
	} else if lines.Err() != nil {
		return nil, nil, fmt.Errorf("rules %s: %w", name, lines.Err())
	}
	if err := wrong.join(); err != nil {
		return nil, nil, err
	}
	return allow, deny, nil
}

func withoutDeny(text string) (rule string, isDeny bool) {
	for _, space := range []string{" ", "\t"} {
		if rule, isDeny = strings.CutPrefix(text, "deny"+space); isDeny {
			return strings.TrimSpace(rule), true
		}
	}
	return text, false
}

func checkLine(rule string) error {
	if rule == "deny" {
		return errors.New("deny has no rule; write deny RULE")
	}
	if strings.HasPrefix(rule, "--") {
		return fmt.Errorf("%q: a file has rules without a flag in front; write RULE or deny RULE", rule)
	}
	_, err := Parse(rule)
	return err
}

func withoutComment(line string) string {
	for i, c := range line {
		if c == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}

// maxFaults is how many faults an error lists.
const maxFaults = 10

// faults are the errors of several rules.
type faults struct {
	list  []error
	total int
}

func (f *faults) add(err error) {
	f.total++
	if f.total <= maxFaults {
		f.list = append(f.list, err)
	}
}

func (f *faults) join() error {
	if f.total > maxFaults {
		f.list = append(f.list, fmt.Errorf("%d more rules are wrong", f.total-maxFaults))
	}
	return errors.Join(f.list...)
}
