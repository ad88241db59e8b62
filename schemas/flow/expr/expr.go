package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"agentsvc/schemas/check"
	"agentsvc/schemas/problem"
)

// Limits of an expression.
const (
	// MaxBytes is the maximum length of one expression.
	MaxBytes = 4 << 10
	// MaxCost is the cost at which an evaluation ends. A unit takes up to 400 ns.
	MaxCost = 1_000_000

	maxDepth   = 50    // of the syntax tree
	maxTree    = 2_000 // values, names and calls, also those that macros add
	maxLoops   = 3     // comprehensions inside each other
	maxPattern = 500   // instructions of one pattern of matches()
	lookAfter  = 256   // iterations between checks of the context
)

// Fault is why a text is no expression that can be used.
type Fault struct {
	Message string
	// Offset is the position in the text, in characters; -1 if the fault is not at one place.
	Offset int
}

// Error returns the message.
func (f *Fault) Error() string { return f.Message }

// Type is what is known of an expression's result before it is evaluated.
type Type string

// Values of Type.
const (
	Any    Type = "any" // known only at run time
	Bool   Type = "a boolean"
	Number Type = "a number"
	Text   Type = "a string"
	Null   Type = "null"
	List   Type = "a list"
	Object Type = "an object"
	Other  Type = "no JSON value"
)

// Meets reports whether values of two types can be equal.
func (t Type) Meets(other Type) bool { return t == Any || other == Any || t == other }

// Expr is a compiled expression. It is safe for concurrent use.
type Expr struct {
	tree     *cel.Ast
	nodes    []string
	of       Type
	patterns map[string]*check.Pattern
	program  func() (cel.Program, error)
}

// environment is the one environment of all expressions. Making it takes milliseconds.
var environment = sync.OnceValue(func() *cel.Env {
	registry, err := types.NewRegistry()
	if err != nil {
		panic(err) // the registry is empty
	}
	e, err := cel.NewCustomEnv(
		cel.StdLib(cel.StdLibSubset(&env.LibrarySubset{ExcludeFunctions: zoned})),
		cel.CustomTypeProvider(provider{registry}),
		cel.CustomTypeAdapter(registry),
		cel.Variable("input", cel.DynType),
		cel.Variable("variables", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("nodes", cel.MapType(cel.StringType, nodeType)),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserRecursionLimit(maxDepth),
		cel.ParserErrorRecoveryLimit(1),
		cel.ParserExpressionSizeLimit(MaxBytes),
		cel.ExpressionNodeLimit(maxTree),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(maxLoops), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
	if err != nil {
		panic(err) // the options are constants
	}
	return e
})

// zoned are the overloads that read the zone data of the host.
var zoned = func() []*env.Function {
	var out []*env.Function
	for function, id := range map[string]string{
		overloads.TimeGetFullYear: overloads.TimestampToYearWithTz, overloads.TimeGetMonth: overloads.TimestampToMonthWithTz,
		overloads.TimeGetDayOfYear: overloads.TimestampToDayOfYearWithTz, overloads.TimeGetDate: overloads.TimestampToDayOfMonthOneBasedWithTz,
		overloads.TimeGetDayOfMonth: overloads.TimestampToDayOfMonthZeroBasedWithTz, overloads.TimeGetDayOfWeek: overloads.TimestampToDayOfWeekWithTz,
		overloads.TimeGetHours: overloads.TimestampToHoursWithTz, overloads.TimeGetMinutes: overloads.TimestampToMinutesWithTz,
		overloads.TimeGetSeconds: overloads.TimestampToSecondsWithTz, overloads.TimeGetMilliseconds: overloads.TimestampToMillisecondsWithTz,
	} {
		out = append(out, &env.Function{Name: function, Overloads: []*env.Overload{{ID: id}}})
	}
	return out
}()

// Compile checks the syntax, the types and the limits of an expression. The error is a *Fault.
func Compile(source string) (*Expr, error) {
	if len(source) > MaxBytes {
		return nil, &Fault{fmt.Sprintf("must have at most %d bytes", MaxBytes), -1}
	}
	if strings.TrimSpace(source) == "" {
		return nil, &Fault{"must not be empty", -1}
	}
	if !utf8.ValidString(source) {
		return nil, &Fault{"is not UTF-8", -1}
	}
	if nesting(source) > maxDepth {
		return nil, &Fault{fmt.Sprintf("nests deeper than %d levels", maxDepth), -1}
	}
	e := environment()
	tree, issues := e.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, fault(source, issues)
	}
	x := &Expr{tree: tree, of: typeOf(tree.OutputType())}
	x.program = sync.OnceValues(x.plan)
	if f := x.inspect(tree.NativeRep().Expr()); f != nil {
		return nil, f
	}
	if cost, err := e.EstimateCost(tree, unknownSizes{}); err != nil || cost.Min > MaxCost {
		return nil, &Fault{fmt.Sprintf("costs at least %d units, and the limit is %d", cost.Min, MaxCost), -1}
	}
	return x, nil
}

// Nodes returns the ids of the nodes whose output the expression names, each once.
func (x *Expr) Nodes() []string { return x.nodes }

// Never reports whether the expression is the literal false.
func (x *Expr) Never() bool {
	root := x.tree.NativeRep().Expr()
	return root.Kind() == ast.LiteralKind && root.AsLiteral() == types.False
}

// Type returns what is known of the result.
func (x *Expr) Type() Type { return x.of }

// nesting returns how deep a text nests at most: its open brackets, and the unary operators in
// a row. The parser takes memory for each level before it counts them itself.
func nesting(source string) int {
	depth, most, row := 0, 0, 0
	for _, c := range []byte(source) {
		switch c {
		case '(', '[', '{', '?':
			depth++
			row = 0
		case ')', ']', '}':
			depth--
			row = 0
		case '!', '-':
			row++
		case ' ', '\t', '\n', '\r':
		default:
			row = 0
		}
		most = max(most, depth+row)
	}
	return most
}

func fault(source string, issues *cel.Issues) *Fault {
	first := issues.Errors()[0]
	f := &Fault{Message: clip(first.Message), Offset: -1}
	if at := first.Location; at.Line() > 0 && at.Column() >= 0 {
		f.Offset = at.Column()
		for i, line := 1, source; i < at.Line(); i++ {
			head, tail, _ := strings.Cut(line, "\n")
			f.Offset += utf8.RuneCountInString(head) + 1
			line = tail
		}
	}
	if name, ok := strings.CutPrefix(first.Message, "undeclared reference to '"); ok {
		name, _, _ = strings.Cut(name, "'")
		f.Message = fmt.Sprintf("names %s, which is not known; an expression sees input, variables and nodes; text stands in quotes", clip(name))
	}
	for _, issue := range issues.Errors() {
		if strings.Contains(issue.Message, "'_-_' applied to '(node") {
			f.Message = "subtracts from a node; an id with a hyphen is written nodes['id']"
		}
	}
	return f
}

// clip shortens the first line of what a message quotes.
func clip(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return problem.Clip(s, 200)
}

func typeOf(t *cel.Type) Type {
	switch t.Kind() {
	case types.DynKind, types.AnyKind, types.TypeParamKind:
		return Any
	case types.BoolKind:
		return Bool
	case types.IntKind, types.UintKind, types.DoubleKind:
		return Number
	case types.StringKind:
		return Text
	case types.NullTypeKind:
		return Null
	case types.ListKind:
		return List
	case types.MapKind:
		return Object
	}
	return Other
}

// inspect finds the nodes that are named, and refuses what cannot be judged before it runs.
func (x *Expr) inspect(root ast.Expr) *Fault {
	var f *Fault
	named := map[int64]bool{} // occurrences of nodes with an id behind them
	refuse := func(of ast.Expr, message string) {
		if f == nil {
			f = &Fault{message, int(x.tree.NativeRep().SourceInfo().GetStartLocation(of.ID()).Column())}
		}
	}
	name := func(of ast.Expr, id string) {
		named[of.ID()] = true
		if !slices.Contains(x.nodes, id) {
			x.nodes = append(x.nodes, id)
		}
	}
	isNodes := func(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "nodes" }
	var patterns check.Patterns
	ast.PreOrderVisit(root, ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.IdentKind:
			if isNodes(e) && !named[e.ID()] {
				refuse(e, "must have the id of one node behind nodes: nodes.<id> or nodes['<id>']")
			}
		case ast.StructKind:
			refuse(e, "must not make a value of a type")
		case ast.SelectKind:
			if s := e.AsSelect(); isNodes(s.Operand()) {
				name(s.Operand(), s.FieldName())
			}
		case ast.ComprehensionKind:
			if slices.Contains([]string{"input", "variables", "nodes"}, e.AsComprehension().IterVar()) {
				refuse(e, "must not use input, variables or nodes as the name of an item")
			}
		case ast.CallKind:
			c := e.AsCall()
			switch args := c.Args(); {
			case c.FunctionName() == operators.Index && isNodes(args[0]) && args[1].Kind() == ast.LiteralKind:
				if id, ok := args[1].AsLiteral().(types.String); ok {
					name(args[0], string(id))
				}
			case c.FunctionName() == overloads.Matches:
				text := args[len(args)-1]
				literal, ok := types.String(""), text.Kind() == ast.LiteralKind
				if ok {
					literal, ok = text.AsLiteral().(types.String)
				}
				if !ok {
					refuse(text, "must have a literal as the pattern of matches")
					return
				}
				p, err := patterns.Compile(string(literal))
				if err == nil && p.Size > maxPattern {
					err = check.ErrPattern
				}
				if err != nil {
					refuse(text, "has a pattern that cannot be used: "+clip(err.Error()))
					return
				}
				if x.patterns == nil {
					x.patterns = map[string]*check.Pattern{}
				}
				x.patterns[string(literal)] = p
			}
		}
	}))
	return f
}

// unknownSizes knows nothing of the sizes of data, so that the least cost counts.
type unknownSizes struct{}

func (unknownSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate { return nil }
func (unknownSizes) EstimateCallCost(_, _ string, _ *checker.AstNode, _ []checker.AstNode) *checker.CallEstimate {
	return nil
}

func (x *Expr) plan() (cel.Program, error) {
	return environment().Program(x.tree, cel.EvalOptions(cel.OptTrackCost), cel.CostLimit(MaxCost), cel.CostTracking(costs{}),
		cel.InterruptCheckFrequency(lookAfter), cel.CustomDecoratorV2(x.decorate))
}

// Data is what an expression sees.
type Data struct {
	Input     []byte // JSON; empty counts as null
	Variables map[string]json.RawMessage
	// Node returns the output of a node; ok is false if the node has none. json is nil if the
	// output has no JSON.
	Node func(id string) (text string, json []byte, ok bool)
}

// Value is the result of an expression.
type Value struct {
	v ref.Val
	m *meter
}

// Errors of Eval and of Value.
var (
	// ErrCost is returned when an evaluation exceeds MaxCost.
	ErrCost = errors.New("costs too much: it exceeds the limit of work for one expression")
	// ErrNoJSON is returned for a result that is no JSON value.
	ErrNoJSON = errors.New("has a result that is no JSON value")
)

// Eval evaluates the expression and returns its value and what it cost. The error is ErrCost,
// that of ctx, or says what is wrong with the data.
func (x *Expr) Eval(ctx context.Context, data Data) (Value, int, error) {
	if err := ctx.Err(); err != nil {
		return Value{}, 0, err
	}
	program, err := x.program()
	if err != nil {
		return Value{}, 0, errors.New(clip(err.Error()))
	}
	m := &meter{left: MaxCost}
	out, details, err := program.ContextEval(ctx, &activation{data: data, m: m})
	cost := MaxCost - m.left
	if details != nil && details.ActualCost() != nil {
		cost += int(min(*details.ActualCost(), MaxCost))
	}
	var cancelled interpreter.EvalCancelledError
	switch {
	case err == nil:
		m.left = MaxCost // of what is done with the value
		return Value{out, m}, cost, nil
	case ctx.Err() != nil:
		return Value{}, cost, ctx.Err()
	case errors.As(err, &cancelled):
		return Value{}, cost, ErrCost
	}
	return Value{}, cost, errors.New(clip(err.Error()))
}

// activation resolves the variables.
type activation struct {
	data  Data
	m     *meter
	input ref.Val
	vars  *object
	nodes *nodes
}

func (a *activation) Parent() cel.Activation { return nil }

func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case "input":
		if a.input == nil {
			a.input = value(a.m, a.data.Input)
		}
		return a.input, true
	case "variables":
		if a.vars == nil {
			a.vars = objectOf(a.m, a.data.Variables)
		}
		return a.vars, true
	case "nodes":
		if a.nodes == nil {
			a.nodes = &nodes{m: a.m, find: a.data.Node}
		}
		return a.nodes, true
	case meterName:
		return a.m, true
	}
	return nil, false
}

// Bool returns the value of a boolean.
func (v Value) Bool() (value, ok bool) {
	b, ok := v.v.(types.Bool)
	return bool(b), ok
}

// Equal reports whether two values are equal; numbers of different types compare by value.
func (v Value) Equal(other Value) (equal bool, err error) {
	err = v.m.guard(func() { equal = types.Equal(v.v, other.v) == types.True })
	return equal, err
}

// guard runs f and returns ErrCost if it exceeds the limit.
func (m *meter) guard(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(interpreter.EvalCancelledError); !ok {
				panic(r)
			}
			err = ErrCost
		}
	}()
	f()
	return nil
}

// finite reports whether a double has a form in JSON.
func finite(f types.Double) bool { return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) }
