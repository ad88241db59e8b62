package expr

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"

	"agentsvc/schemas/flow/scan"
)

// meter counts the work that an evaluation does beside CEL's own cost.
type meter struct{ left int }

// bytes charges for n bytes of JSON or text.
func (m *meter) bytes(n int) { m.units(n/16 + 1) }

// units charges for n units of work. When nothing is left it panics as CEL does at its own
// limit, and Eval recovers: || and && would absorb an error, and the evaluation would go on.
func (m *meter) units(n int) {
	if m.left -= n; m.left < 0 {
		panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: "cost limit exceeded"})
	}
}

// exact is the largest integer up to which every integer is a double.
const exact = 1 << 53

// value converts JSON; nested values are converted when an expression looks at them.
func value(m *meter, raw []byte) ref.Val {
	raw = scan.Trim(raw)
	switch scan.KindOf(raw) {
	case scan.Object:
		return &object{m: m, raw: raw}
	case scan.List:
		return &list{m: m, raw: raw}
	case scan.String:
		m.bytes(len(raw))
		return types.String(scan.Text(raw))
	case scan.Bool:
		return types.Bool(raw[0] == 't')
	case scan.Null:
		return types.NullValue
	}
	return number(string(raw))
}

func number(s string) ref.Val {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil && (i > exact || i < -exact) {
		return types.Int(i)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return types.NewErr("the number %.40s is out of range", s)
	}
	return types.Double(f)
}

// object is a JSON object, read one level deep at the first look.
type object struct {
	m      *meter
	raw    []byte
	keys   []string // in the order of the text
	values map[string]any
	in     traits.Mapper // over values
}

// objectOf returns an object of members that are already apart, in the order of their names.
func objectOf(m *meter, members map[string]json.RawMessage) *object {
	m.units(8 * len(members))
	o := &object{m: m, keys: slices.Sorted(maps.Keys(members)), values: make(map[string]any, len(members))}
	for k, v := range members {
		o.values[k] = value(m, v)
	}
	o.in = types.NewStringInterfaceMap(types.DefaultTypeAdapter, o.values)
	return o
}

func (o *object) open() traits.Mapper {
	if o.in == nil {
		o.m.bytes(len(o.raw))
		o.values = map[string]any{}
		scan.Members(o.raw, func(key string, v []byte) bool {
			o.m.units(8) // a member takes up to 200 bytes
			if _, twice := o.values[key]; !twice {
				o.keys = append(o.keys, key)
			}
			o.values[key] = value(o.m, v)
			return true
		})
		o.in = types.NewStringInterfaceMap(types.DefaultTypeAdapter, o.values)
	}
	return o.in
}

func (o *object) ConvertToNative(t reflect.Type) (any, error) { return o.open().ConvertToNative(t) }
func (o *object) ConvertToType(t ref.Type) ref.Val            { return o.open().ConvertToType(t) }
func (o *object) Type() ref.Type                              { return types.MapType }
func (o *object) Value() any                                  { return o.open().Value() }
func (o *object) Contains(key ref.Val) ref.Val                { return o.open().Contains(key) }
func (o *object) Get(key ref.Val) ref.Val                     { return o.open().Get(key) }
func (o *object) Size() ref.Val                               { return o.open().Size() }

func (o *object) Find(key ref.Val) (ref.Val, bool) {
	v, ok := o.open().Find(key)
	if !ok {
		o.m.units(failure)
	}
	return v, ok
}

func (o *object) Equal(other ref.Val) ref.Val {
	o.m.bytes(len(o.raw) + 16*len(o.keys))
	return o.open().Equal(other)
}

func (o *object) Iterator() traits.Iterator {
	o.open()
	keys := make([]ref.Val, len(o.keys))
	for i, k := range o.keys {
		keys[i] = types.String(k)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, keys).Iterator()
}

// list is a JSON list, read one level deep at the first look.
type list struct {
	m   *meter
	raw []byte
	in  traits.Lister
}

func (l *list) open() traits.Lister {
	if l.in == nil {
		l.m.bytes(len(l.raw))
		var items []ref.Val
		scan.Items(l.raw, func(v []byte) bool {
			l.m.units(3) // an item takes up to 100 bytes
			items = append(items, value(l.m, v))
			return true
		})
		l.in = types.NewRefValList(types.DefaultTypeAdapter, items)
	}
	return l.in
}

func (l *list) ConvertToNative(t reflect.Type) (any, error) { return l.open().ConvertToNative(t) }
func (l *list) ConvertToType(t ref.Type) ref.Val            { return l.open().ConvertToType(t) }
func (l *list) Type() ref.Type                              { return types.ListType }
func (l *list) Value() any                                  { return l.open().Value() }
func (l *list) Add(other ref.Val) ref.Val                   { return l.open().Add(other) }
func (l *list) Get(i ref.Val) ref.Val                       { return l.open().Get(i) }
func (l *list) Iterator() traits.Iterator                   { return l.open().Iterator() }
func (l *list) Size() ref.Val                               { return l.open().Size() }

func (l *list) Contains(v ref.Val) ref.Val {
	l.m.bytes(len(l.raw))
	return l.open().Contains(v)
}

func (l *list) Equal(other ref.Val) ref.Val {
	l.m.bytes(len(l.raw))
	return l.open().Equal(other)
}

// nodeType is the type of nodes.<id>.
var nodeType = types.NewObjectType("node")

// node is the output of a node as expressions see it.
type node struct {
	text ref.Val
	json ref.Val // nil if there is none
}

func (n *node) ConvertToNative(t reflect.Type) (any, error) {
	return nil, errors.New("a node is no value")
}
func (n *node) ConvertToType(t ref.Type) ref.Val { return types.NewErr("a node is no value") }
func (n *node) Equal(other ref.Val) ref.Val      { return types.Bool(n == other) }
func (n *node) Type() ref.Type                   { return nodeType }
func (n *node) Value() any                       { return n }

// nodes is the variable of that name.
type nodes struct {
	m    *meter
	find func(id string) (text string, json []byte, ok bool)
	seen map[string]*node
}

func (n *nodes) ConvertToNative(t reflect.Type) (any, error) {
	return nil, errors.New("nodes is no value")
}
func (n *nodes) ConvertToType(t ref.Type) ref.Val { return types.NewErr("nodes is no value") }
func (n *nodes) Equal(other ref.Val) ref.Val      { return types.Bool(n == other) }
func (n *nodes) Type() ref.Type                   { return types.MapType }
func (n *nodes) Value() any                       { return n }
func (n *nodes) Size() ref.Val                    { return types.NewErr("nodes has no size") }
func (n *nodes) Iterator() traits.Iterator {
	return types.NewRefValList(types.DefaultTypeAdapter, nil).Iterator()
}

func (n *nodes) Contains(key ref.Val) ref.Val {
	_, ok := n.Find(key)
	return types.Bool(ok)
}

func (n *nodes) Get(key ref.Val) ref.Val {
	if v, ok := n.Find(key); ok {
		return v
	}
	return types.NewErr("no such key: %v", key)
}

func (n *nodes) Find(key ref.Val) (ref.Val, bool) {
	id, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	if found, ok := n.seen[string(id)]; ok {
		return found, found != nil
	}
	text, json, ok := n.find(string(id))
	if !ok {
		n.m.units(failure)
		return nil, false
	}
	n.m.bytes(len(text))
	found := &node{text: types.String(text)}
	if json != nil {
		found.json = value(n.m, json)
	}
	if n.seen == nil {
		n.seen = map[string]*node{}
	}
	n.seen[string(id)] = found
	return found, true
}

// provider adds the type node to the standard ones.
type provider struct{ types.Provider }

func (p provider) FindStructType(name string) (*types.Type, bool) {
	if name == nodeType.TypeName() {
		return types.NewTypeTypeWithParam(nodeType), true
	}
	return p.Provider.FindStructType(name)
}

func (p provider) FindStructFieldNames(name string) ([]string, bool) {
	if name == nodeType.TypeName() {
		return []string{"text", "json"}, true
	}
	return p.Provider.FindStructFieldNames(name)
}

func (p provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if name != nodeType.TypeName() {
		return p.Provider.FindStructFieldType(name, field)
	}
	switch field {
	case "text":
		return &types.FieldType{Type: types.StringType,
			IsSet:   func(any) bool { return true },
			GetFrom: func(of any) (any, error) { return of.(*node).text, nil }}, true
	case "json":
		return &types.FieldType{Type: types.DynType,
			IsSet: func(of any) bool { return of.(*node).json != nil },
			GetFrom: func(of any) (any, error) {
				if n := of.(*node); n.json != nil {
					return n.json, nil
				}
				return types.NullValue, nil
			}}, true
	}
	return nil, false
}

// NewValue refuses to make one: nodes come from the run.
func (p provider) NewValue(name string, fields map[string]ref.Val) ref.Val {
	return types.NewErr("a value of type %s cannot be made", name)
}
