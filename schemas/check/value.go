package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Limits of values.
const (
	maxDepth  = 128 // levels of nesting of a value, and of a schema
	maxDigits = 400 // of a number, as written or by its exponent
	// maxMemory limits the estimated size of a decoded value in bytes: it can be fifty times
	// the length of its text.
	maxMemory = 20 << 20
)

// Errors of Decode.
var (
	ErrNoJSON = errors.New("is not JSON")
	ErrDeep   = errors.New("nests deeper than " + strconv.Itoa(maxDepth) + " levels")
	ErrMany   = errors.New("holds too many values")
	ErrHuge   = errors.New("holds a number of too many digits")
)

// Decode parses a JSON text into a value of bounded size. Numbers are json.Number.
func Decode(doc []byte) (any, error) {
	if !json.Valid(doc) {
		return nil, ErrNoJSON
	}
	if err := Fits(doc); err != nil {
		return nil, err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		return nil, ErrNoJSON
	}
	return v, nil
}

// Fits returns ErrDeep, ErrMany or ErrHuge if valid JSON must not be decoded.
func Fits(doc []byte) error {
	memory, depth := len(doc), 0
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case c == '"':
			for i++; doc[i] != '"'; i++ {
				if doc[i] == '\\' {
					i++
				}
			}
			memory += 48
		case c == '{':
			depth++
			memory += 340
		case c == '[':
			depth++
			memory += 64
		case c == '}' || c == ']':
			depth--
		case c == '-' || c >= '0' && c <= '9':
			from := i
			for i+1 < len(doc) && strings.IndexByte("+-.eE0123456789", doc[i+1]) >= 0 {
				i++
			}
			if huge(string(doc[from : i+1])) {
				return ErrHuge
			}
			memory += 56
		case c == 't' || c == 'f' || c == 'n':
			memory += 32
			i += 3 // the rest of a literal need not be counted
		}
		if depth > maxDepth {
			return ErrDeep
		}
		if memory > maxMemory {
			return ErrMany
		}
	}
	return nil
}

// huge reports whether a number has so many digits, as written or by its exponent, that exact
// arithmetic with it is an attack.
func huge(number string) bool {
	if len(number) > maxDigits {
		return true
	}
	i := strings.IndexAny(number, "eE")
	if i < 0 {
		return false
	}
	exponent, err := strconv.Atoi(number[i+1:])
	return err != nil || exponent > maxDigits || exponent < -maxDigits
}

// canon returns a canonical form of a number, so that equal numbers have equal forms: its
// digits without zeros at either end, and an exponent.
func canon(number string) (digits string, exponent int, negative bool) {
	s, negative := strings.CutPrefix(number, "-")
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		exponent, _ = strconv.Atoi(s[i+1:]) // cannot fail: the number is not huge
		s = s[:i]
	}
	if whole, fraction, ok := strings.Cut(s, "."); ok {
		s = whole + fraction
		exponent -= len(fraction)
	}
	s = strings.TrimLeft(s, "0")
	digits = strings.TrimRight(s, "0")
	exponent += len(s) - len(digits)
	if digits == "" {
		return "0", 0, false
	}
	return digits, exponent, negative
}

func canonText(number string) string {
	digits, exponent, negative := canon(number)
	sign := "+"
	if negative {
		sign = "-"
	}
	return sign + digits + "e" + strconv.Itoa(exponent)
}

func isInteger(number string) bool {
	_, exponent, _ := canon(number)
	return exponent >= 0
}
