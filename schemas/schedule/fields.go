package schedule

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/robfig/cron/v3"

	"agentsvc/schemas/problem"
)

// field is one of the five fields of an expression.
type field struct {
	name     string
	min, max int
	words    []string // names of the values from min on
}

var fields = [5]field{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of month", 1, 31, nil},
	{"month", 1, 12, []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{"day of week", 0, 7, []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

// star marks an unrestricted field: if day of month or day of week is one, only the other
// counts.
const star = 1 << 63

// parse reads the five fields.
func parse(expression string) (*cron.SpecSchedule, error) {
	texts := strings.Fields(expression)
	switch {
	case strings.Contains(expression, "="):
		return nil, fmt.Errorf("the expression cannot name a time zone: use the field timezone")
	case strings.HasPrefix(strings.TrimSpace(expression), "@"):
		return nil, fmt.Errorf("%s is not supported: write the five fields, as in \"0 9 * * MON-FRI\"", clip(texts[0]))
	case len(texts) != len(fields):
		return nil, fmt.Errorf("expected five fields (minute, hour, day of month, month, day of week), got %d", len(texts))
	}
	var sets [len(fields)]uint64
	for i, text := range texts {
		var err error
		if sets[i], err = fields[i].set(text); err != nil {
			return nil, err
		}
	}
	if sets[4]&(1<<7) != 0 { // Sunday has two numbers
		sets[4] = sets[4]&^(1<<7) | 1
	}
	return &cron.SpecSchedule{Second: 1, Minute: sets[0], Hour: sets[1], Dom: sets[2], Month: sets[3], Dow: sets[4]}, nil
}

// set returns the values that the text names, as bits.
func (f *field) set(text string) (uint64, error) {
	var all uint64
	for item := range strings.SplitSeq(text, ",") {
		one, err := f.item(item)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f.name, err)
		}
		all |= one
	}
	return all, nil
}

// item parses one item of a list: *, a value or a range, each optionally with a step.
func (f *field) item(item string) (uint64, error) {
	if item == "" {
		return 0, fmt.Errorf("an item of the list is empty")
	}
	span, step, stepped := strings.Cut(item, "/")
	every := 1
	if stepped {
		n, ok := number(step)
		if !ok || n < 1 {
			return 0, fmt.Errorf("the step %q must be a whole number from 1 on", clip(step))
		}
		every = n
	}
	low, high, ranged := strings.Cut(span, "-")
	from, to := f.min, f.max
	switch {
	case span == "*":
		if f.max == 7 {
			to = 6 // each day once
		}
	default:
		var err error
		if from, err = f.value(low); err != nil {
			return 0, err
		}
		switch {
		case ranged:
			if to, err = f.value(high); err != nil {
				return 0, err
			}
			if f.max == 7 && to == 0 && from > 0 && strings.EqualFold(high, "SUN") {
				to = 7 // FRI-SUN
			}
			if to < from {
				return 0, fmt.Errorf("the range %q ends before it begins", clip(span))
			}
		case !stepped:
			to = from
		case f.max == 7:
			to = 6
		}
	}
	var bits uint64
	for v := from; v <= to; v += every {
		bits |= 1 << v
	}
	if span == "*" && every == 1 {
		bits |= star
	}
	return bits, nil
}

// value parses a number or a name.
func (f *field) value(text string) (int, error) {
	for i, word := range f.words {
		if strings.EqualFold(text, word) {
			return f.min + i, nil
		}
	}
	n, ok := number(text)
	switch {
	case !ok && f.words != nil:
		return 0, fmt.Errorf("%q is neither a number nor a name such as %s", clip(text), f.words[0])
	case !ok:
		return 0, fmt.Errorf("%q is not a number", clip(text))
	case n < f.min || n > f.max:
		return 0, fmt.Errorf("%d is not between %d and %d", n, f.min, f.max)
	}
	return n, nil
}

// number parses a text of digits only.
func number(text string) (int, bool) {
	if text == "" || len(text) > 4 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// clip shortens text that an error quotes.
func clip(text string) string { return problem.Clip(text, 40) }
