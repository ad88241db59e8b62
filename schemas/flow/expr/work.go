package expr

import (
	"encoding/json"
	"math"
	"slices"

	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// meterName is the name under which a call finds the meter; no expression can write it.
const meterName = "@meter"

// failure is the cost of an error, which takes longer to make than a value. || and && absorb
// errors, so an expression can make many.
const failure = 20

// costs gives each call a cost by the size of its arguments. CEL's own goes by the overload,
// which is not known where the data is JSON, and then counts one.
type costs struct{}

func (costs) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	n := uint64(1)
	if types.IsError(result) {
		n += failure
	}
	switch function {
	case operators.Equals, operators.NotEquals, operators.In, operators.OldIn:
		for _, a := range args {
			n += deep(a)
		}
	default:
		for _, a := range args {
			n += length(a)
		}
	}
	return &n
}

// length is the cost of reading a text; anything else is read elsewhere.
func length(v ref.Val) uint64 {
	switch v := v.(type) {
	case types.String:
		return uint64(len(v)) / 16
	case types.Bytes:
		return uint64(len(v)) / 16
	}
	return 0
}

// deep is the cost of comparing a value. JSON charges for itself.
func deep(v ref.Val) uint64 {
	switch v := v.(type) {
	case *object, *list:
		return 1
	case traits.Lister:
		n := uint64(1)
		for it := v.Iterator(); it.HasNext() == types.True && n < MaxCost; {
			n += 1 + deep(it.Next())
		}
		return n
	case traits.Mapper:
		n := uint64(1)
		for it := v.Iterator(); it.HasNext() == types.True && n < MaxCost; {
			key := it.Next()
			n += 2 + length(key)
			if in, ok := v.Find(key); ok {
				n += deep(in)
			}
		}
		return n
	}
	return length(v)
}

// decorate replaces the arithmetic and matches(). Arithmetic mixes integers with the doubles
// that JSON numbers are; matches() uses the patterns that Compile has bounded, and charges
// before it reads its text.
func (x *Expr) decorate(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || len(call.Args()) != 2 {
		return i, nil
	}
	switch call.Function() {
	case operators.Add, operators.Subtract, operators.Multiply, operators.Divide:
		return &arithmetic{call}, nil
	case overloads.Matches:
		return &matches{call, x}, nil
	}
	return i, nil
}

type arithmetic struct{ interpreter.InterpretableCall }

func (a *arithmetic) Eval(vars interpreter.Activation) ref.Val {
	return a.Exec(interpreter.AsFrame(vars))
}

func (a *arithmetic) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	left, right := a.Args()[0].Exec(frame), a.Args()[1].Exec(frame)
	if types.IsUnknownOrError(left) {
		return left
	}
	if types.IsUnknownOrError(right) {
		return right
	}
	left, right = mix(left, right)
	out := types.NoSuchOverloadErr()
	switch a.Function() {
	case operators.Add:
		if l, ok := left.(traits.Adder); ok {
			return l.Add(right)
		}
	case operators.Subtract:
		if l, ok := left.(traits.Subtractor); ok {
			return l.Subtract(right)
		}
	case operators.Multiply:
		if l, ok := left.(traits.Multiplier); ok {
			return l.Multiply(right)
		}
	case operators.Divide:
		if l, ok := left.(traits.Divider); ok {
			return l.Divide(right)
		}
	}
	return out
}

// mix turns an integer beside a double into a double.
func mix(left, right ref.Val) (l, r ref.Val) {
	if _, ok := left.(types.Double); ok {
		return left, double(right)
	}
	if _, ok := right.(types.Double); ok {
		return double(left), right
	}
	return left, right
}

func double(v ref.Val) ref.Val {
	switch v := v.(type) {
	case types.Int:
		return types.Double(v)
	case types.Uint:
		return types.Double(v)
	}
	return v
}

type matches struct {
	interpreter.InterpretableCall
	x *Expr
}

func (c *matches) Eval(vars interpreter.Activation) ref.Val { return c.Exec(interpreter.AsFrame(vars)) }

func (c *matches) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	text, pattern := c.Args()[0].Exec(frame), c.Args()[1].Exec(frame)
	if types.IsUnknownOrError(text) {
		return text
	}
	s, isText := text.(types.String)
	literal, _ := pattern.(types.String)
	p := c.x.patterns[string(literal)]
	found, _ := frame.ResolveName(meterName)
	m, metered := found.(*meter)
	if !isText || p == nil || !metered {
		return types.NoSuchOverloadErr()
	}
	m.units(1 + len(s)*p.Size/8) // an instruction takes up to 30 ns a byte
	return types.Bool(p.MatchString(string(s)))
}

// JSON returns the value as JSON of at most the given bytes. The error is ErrNoJSON or ErrCost.
func (v Value) JSON(most int) (out json.RawMessage, err error) {
	if stop := v.m.guard(func() { out, err = appendJSON(nil, v.v, most) }); stop != nil {
		return nil, stop
	}
	return out, err
}

func appendJSON(b []byte, v ref.Val, most int) ([]byte, error) {
	if len(b) > most {
		return nil, ErrCost
	}
	switch v := v.(type) {
	case *object:
		return bounded(append(b, v.raw...), most)
	case *list:
		return bounded(append(b, v.raw...), most)
	case types.Bool:
		if v {
			return append(b, "true"...), nil
		}
		return append(b, "false"...), nil
	case types.Null:
		return append(b, "null"...), nil
	case types.String:
		return plain(b, string(v), most)
	case types.Int:
		return plain(b, int64(v), most)
	case types.Uint:
		return plain(b, uint64(v), most)
	case types.Double:
		if !finite(v) {
			return nil, ErrNoJSON
		}
		if f := float64(v); f == math.Trunc(f) && math.Abs(f) <= exact {
			return plain(b, int64(f), most) // 3, and not 3e0 or 3.0
		}
		return plain(b, float64(v), most)
	case types.Timestamp, types.Duration:
		return plain(b, v.ConvertToType(types.StringType).Value(), most)
	case traits.Mapper:
		keys := make([]string, 0, 8)
		for it := v.Iterator(); it.HasNext() == types.True; {
			key, ok := it.Next().(types.String)
			if !ok {
				return nil, ErrNoJSON
			}
			keys = append(keys, string(key))
		}
		slices.Sort(keys) // a map that an expression makes has no order
		b = append(b, '{')
		for i, key := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = plain(b, key, most); err != nil {
				return nil, err
			}
			if b, err = appendJSON(append(b, ':'), v.Get(types.String(key)), most); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case traits.Lister:
		b = append(b, '[')
		for it, n := v.Iterator(), 0; it.HasNext() == types.True; n++ {
			if n > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendJSON(b, it.Next(), most); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	}
	return nil, ErrNoJSON
}

func plain(b []byte, v any, most int) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, ErrNoJSON
	}
	return bounded(append(b, text...), most)
}

func bounded(b []byte, most int) ([]byte, error) {
	if len(b) > most {
		return nil, ErrCost
	}
	return b, nil
}
