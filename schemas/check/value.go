package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of values.
const (
	maxDepth  = 128 // levels of nesting of a value, and of a schema
	maxDigits = 400 // of a number, written or by its exponent
	// maxMemory bounds what a value takes when it is decoded, in bytes, estimated: a
	// text can take fifty times its length.
	maxMemory = 20 << 20
)

// Errors of Decode.
var (
	ErrNoJSON = errors.New("is not JSON")
	ErrDeep   = errors.New("nests deeper than " + strconv.Itoa(maxDepth) + " levels")
	ErrMany   = errors.New("holds too many values")
	ErrHuge   = errors.New("holds a number of too many digits")
)

// Decode reads a JSON text whose size in memory is bounded. Numbers are
// json.Number.
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

// Fits reports whether valid JSON may be decoded: ErrDeep, ErrMany or ErrHuge
// where it may not.
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
			i += 3 // the rest of a literal holds nothing that is counted
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

// huge reports whether a number has so many digits, written or by its exponent,
// that exact arithmetic on it is a weapon.
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

// canon writes a number such that equal numbers are equal texts: its digits
// without zeros at either end, and an exponent.
func canon(number string) (digits string, exponent int, negative bool) {
	s, negative := strings.CutPrefix(number, "-")
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		exponent, _ = strconv.Atoi(s[i+1:]) // no error: the number is not huge
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
