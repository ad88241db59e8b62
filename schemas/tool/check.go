package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentsvc/schemas/check"
)

// MaxArgsBytes is the maximum size of the arguments of a call, which the specification leaves open.
const MaxArgsBytes = 1 << 20

// ErrSchema is returned for a tool's schema that cannot be used: it is not a JSON Schema,
// refers to something outside itself, or is too expensive to check.
var ErrSchema = errors.New("the tool's schema cannot be used")

// ArgsError describes what is wrong with the arguments of a call: one `<path>: <message>`
// each. It contains names and parts of the schema, never a value of the arguments: that may
// be a secret.
type ArgsError struct {
	Complaints []string
	More       int // number of complaints that are not listed
}

func (e *ArgsError) Error() string {
	s := strings.Join(e.Complaints, "; ")
	if e.More > 0 {
		s += "; and " + strconv.Itoa(e.More) + " more"
	}
	return s
}

func complain(at, message string) *ArgsError {
	return &ArgsError{Complaints: []string{path(at) + ": " + message}}
}

// Check validates the arguments of a call against the tool's schema, formats included. It
// returns nil, an *ArgsError, an ErrSchema, or the error of ctx. Without a schema any object
// is valid. Nothing that a schema refers to is ever fetched. The work is bounded, whatever
// the schema and the arguments.
//
// An object with a duplicate key is refused whatever the schema: the tool and the approver
// might read it differently.
func Check(ctx context.Context, schema, args json.RawMessage) error {
	if len(args) > MaxArgsBytes {
		return complain("", fmt.Sprintf("have more than %d bytes", MaxArgsBytes))
	}
	top, err := parse(args)
	if err != nil {
		return complain("", err.Error())
	}
	if top.kind != '{' {
		return complain("", "must be an object")
	}
	if err := sound("", top); err != nil {
		return err
	}
	if s := bytes.TrimSpace(schema); len(s) == 0 || string(s) == "null" {
		return nil
	}
	compiled, err := compile(ctx, schema)
	if err != nil {
		return unusable(ctx, err)
	}
	v, err := check.Decode(args)
	if err != nil {
		return complain("", err.Error())
	}
	var invalid *jsonschema.ValidationError
	switch err := compiled.Check(ctx, v); {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return report(top, invalid)
	default:
		return unusable(ctx, err)
	}
}

// unusable distinguishes a schema that cannot be used from a caller that has left.
func unusable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrSchema, err)
}

// sound finds what makes arguments unfit to be shown and sent at all: duplicate keys, of
// which one reader uses the first and another the last, and numbers that take gigabytes to
// compare.
func sound(at string, v *value) error {
	if v.huge {
		return complain(at, "is a number of too many digits")
	}
	seen := make(map[string]bool, len(v.members))
	for i := range v.members {
		m := &v.members[i]
		to := under(at, m.key)
		if v.kind == '[' {
			to = item(at, i)
		} else if seen[m.key] {
			return complain(to, "is there twice")
		}
		seen[m.key] = true
		if err := sound(to, &m.value); err != nil {
			return err
		}
	}
	return nil
}
