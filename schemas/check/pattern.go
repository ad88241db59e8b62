package check

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// Limits of patterns. An instruction of a compiled pattern takes about 100 bytes, including
// what a match needs, and a match takes at most one step per instruction and byte of its
// text.
const (
	// MaxPatternBytes is the maximum length of one pattern.
	MaxPatternBytes = 4 << 10
	maxPattern      = 5_000     // instructions of one pattern
	maxPatterns     = 20_000    // instructions of all patterns of one document
	maxReading      = 4_000_000 // steps to parse all patterns of one document
)

// ErrPattern is returned for a pattern whose compiled form is too large.
var ErrPattern = errors.New("is too expensive: its repeats and classes expand to more than this service compiles")

var errLongPattern = fmt.Errorf("has more than %d bytes", MaxPatternBytes)

// Patterns compiles the patterns of one document within one bound. The zero value
// is ready to use.
type Patterns struct {
	used int
	read int // steps
	made map[string]*Pattern
	over bool // a pattern was refused: no further one is compiled
}

// Pattern is a compiled regular expression (RE2) and its size in instructions.
type Pattern struct {
	*regexp.Regexp
	Size int
}

// Compile compiles a pattern. The error is ErrPattern, or says why the text is not a pattern.
// After an ErrPattern every new pattern fails with it: parsing it could take megabytes as
// well.
func (p *Patterns) Compile(expr string) (*Pattern, error) {
	if made, ok := p.made[expr]; ok {
		return made, nil
	}
	if len(expr) > MaxPatternBytes {
		return nil, errLongPattern
	}
	if p.read += reading(expr); p.read > maxReading {
		p.over = true
	}
	if p.over {
		return nil, ErrPattern
	}
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := instructions(parsed)
	if size > maxPattern || p.used+size > maxPatterns {
		p.over = true
		return nil, ErrPattern
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, err
	}
	p.used += size
	made := &Pattern{Regexp: re, Size: size}
	if p.made == nil {
		p.made = map[string]*Pattern{}
	}
	p.made[expr] = made
	return made, nil
}

// Over reports whether a pattern was refused with ErrPattern.
func (p *Patterns) Over() bool { return p.over }

// Work returns the maximum steps of a match of the pattern over n bytes, in the steps of
// Schema.Check.
func (p *Pattern) Work(n int) int { return 1 + (n+1)*(p.Size/8+1)/4 }

// reading returns the maximum steps to parse the text of a pattern. A Unicode class takes a
// hundred microseconds. A wide range that ignores case takes milliseconds, because the parser
// folds each of its characters.
func reading(expr string) int {
	steps := 16 + 4*len(expr)
	steps += 2_000 * (strings.Count(expr, `\p`) + strings.Count(expr, `\P`))
	if strings.Contains(expr, "(?") {
		for i := 0; i+1 < len(expr); i++ {
			if next := expr[i+1]; expr[i] == '-' && (next == '\\' || next >= utf8.RuneSelf) {
				steps += 100_000
			}
		}
	}
	return steps
}

// instructions returns an upper bound of the instructions that a parsed pattern compiles to;
// any number above maxPattern means too many.
func instructions(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass:
		n = 1 + len(re.Rune)/8 // the class is stored as ranges
	case syntax.OpRepeat:
		n = instructions(re.Sub[0]) + 1
		times := max(re.Max, re.Min+1, 1)
		if n > maxPattern || times > maxPattern {
			return maxPattern + 1
		}
		return n * times
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		n = 2
	}
	for _, sub := range re.Sub {
		if n += 1 + instructions(sub); n > maxPattern {
			return maxPattern + 1
		}
	}
	return n
}
