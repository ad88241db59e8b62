package edge

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"unsafe"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/event"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge/sse"
)

// Bucket is the token bucket that a route is charged to.
type Bucket uint8

// Buckets.
const (
	BucketPlatform Bucket = iota // the tenant's or the user's; the address's for refused calls, the public one for public routes
	BucketNone                   // not limited here: health, and routes with buckets of their own
)

// Size limits of open-parts.md, Sizes.
const (
	MaxJSON       = 2 << 20
	MaxAttachment = 20 << 20
	MaxDocument   = 50 << 20
)

// Route is one row of the table.
type Route struct {
	Method, Path string // "/v1/threads/{id}/messages"; "{rest...}" as last segment takes the rest
	EmptyRest    bool   // the row is served for an empty "{rest...}" too; it has no other parameter
	ID           string // operationId
	Summary      string
	Description  string
	Tag          string
	Role         lifecycle.Role // the least role required; none means public, unless Auth is set
	Auth         Authenticator  // instead of the platform's, e.g. embed sessions
	Scheme       string         // of Auth in the OpenAPI document; "" = embed
	Bucket       Bucket
	// Charge takes the cost of a call from buckets of the route's own, after authentication
	// and before the body is read. Its error is the response.
	Charge     func(ctx context.Context, c *Caller) error
	Status     int            // status of success; 0 = 200, or 204 for Empty
	Codes      []problem.Code // besides the codes that every route of its kind has
	Idempotent bool           // takes Idempotency-Key: every POST but login
	MaxBody    int64          // 0 = MaxJSON; for uploads the sum of all files
	MaxFile    int64          // for uploads, one file; 0 = MaxAttachment
	MaxFiles   int            // for uploads; 0 = 1
	Example    any            // of the request body
	Answer     any            // example of the response body; for raw responses a struct is also its schema
	Frames     []Frame        // for streams: what a data line may hold
	Params     []HeaderField  // header fields of requests that only the handler reads, for the document
	Headers    []HeaderField  // header fields that the handler sets on success, for the document
	Tagged     bool           // answers have an ETag, and If-None-Match is answered with 304; for the document
	MediaType  string         // of downloads and raw answers, for the document
	Hidden     bool           // not in the OpenAPI document
	Always     bool           // served also without the node's lease: health routes
	// Again is called with the input before a response kept under an Idempotency-Key is
	// replayed, on a route of Handle: the handler committed and may have stopped before its
	// last step. Its error becomes the response. nil means that the commit was the last step.
	Again func(ctx context.Context, c *Caller, in any) error
}

// Frame describes one frame type of a stream for the OpenAPI document.
type Frame struct {
	Type event.Type
	Data any // a struct, filled as an example; the member type is added
	Doc  string
}

// HeaderField describes a header field for the OpenAPI document.
type HeaderField struct{ Name, Description string }

// Empty is a response without a body.
type Empty struct{}

// Subscriber feeds a stream. Attach is called once its head is sent, Gone exactly once when
// the stream has ended or did not begin.
type Subscriber = sse.Subscriber

// Conn is an open stream.
type Conn = sse.Conn

// Owner is the caller on whose behalf a stream is open.
type Owner = sse.Owner

// Table holds the rows.
type Table struct {
	router    router
	endpoints []*endpoint
	ids       map[string]bool
	reg       *registry
	docs      map[reflect.Type]string
	cross     []string // see CrossOrigin
}

// kind is the form in which an endpoint answers.
type kind uint8

const (
	kindJSON kind = iota
	kindStream
	kindUpload
	kindDownload
	kindRaw
)

// endpoint is a row with everything compiled from it.
type endpoint struct {
	Route
	kind   kind
	signed bool // calls are charged by their signature
	params []string
	plan   *plan
	out    reflect.Type // nil without a body
	frames *huma.Schema // of streams
	serve  func(s *Server, rq *request) error
	counts counts
}

// answers makes the schema of a raw response from its example, if that is a struct.
func (e *endpoint) answers(t *Table, example any) {
	if out := reflect.TypeOf(example); out != nil && out.Kind() == reflect.Struct {
		e.out = out
		t.reg.Schema(out, true, upper(e.ID)+"Answer")
	}
}

func (e *endpoint) public() bool { return e.Role == "" && e.Auth == nil }

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{ids: map[string]bool{}, reg: newRegistry(), docs: map[reflect.Type]string{}}
}

// Doc describes a type for the OpenAPI document.
func Doc[T any](t *Table, text string) { t.docs[reflect.TypeFor[T]()] = text }

// Enum declares the values of a type, wherever it occurs. Call it before adding routes.
func Enum[T ~string](t *Table, values ...T) {
	all := make([]any, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	t.reg.enums[reflect.TypeFor[T]()] = all
}

// Routes returns the rows in the order in which they were added.
func (t *Table) Routes() []Route {
	rs := make([]Route, len(t.endpoints))
	for i, e := range t.endpoints {
		rs[i] = e.Route
	}
	return rs
}

func (t *Table) add(e *endpoint) {
	if e.ID == "" || t.ids[e.ID] {
		panic(fmt.Sprintf("edge: %s %s: the operation id %q is empty or taken", e.Method, e.Path, e.ID))
	}
	if !strings.HasPrefix(e.Path, "/") {
		panic("edge: the path " + e.Path + " does not begin with /")
	}
	if e.Status == 0 {
		e.Status = http.StatusOK
		if e.kind == kindJSON && e.out == nil {
			e.Status = http.StatusNoContent
		}
	}
	if e.MaxBody == 0 {
		e.MaxBody = MaxJSON
	}
	t.ids[e.ID] = true
	t.router.add(e)
	if e.plan != nil {
		for i := range e.plan.path {
			if !contains(e.params, e.plan.path[i].name) {
				panic(fmt.Sprintf("edge: %s: the path has no {%s}", e.ID, e.plan.path[i].name))
			}
		}
	}
	t.endpoints = append(t.endpoints, e)
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// Handle adds a route that answers JSON, or 204 when Out is Empty. In is a struct whose
// fields are tagged path, query or header, with one field Body for the body; the tag
// required:"false" on Body makes it optional. String fields of Out tagged header are sent as
// header fields.
func Handle[In, Out any](t *Table, r Route, h func(ctx context.Context, c *Caller, in *In) (*Out, error)) {
	e := &endpoint{Route: r, kind: kindJSON, plan: newPlan(t.reg, reflect.TypeFor[In](), r.ID)}
	if reflect.TypeFor[Out]() != reflect.TypeFor[Empty]() {
		e.out = reflect.TypeFor[Out]()
		t.reg.Schema(e.out, true, upper(r.ID)+"Answer")
	}
	fields := headerFields(reflect.TypeFor[Out]())
	e.serve = func(s *Server, rq *request) error {
		in := new(In)
		if err := rq.bind(unsafe.Pointer(in)); err != nil {
			return err
		}
		if r.Again != nil {
			rq.again = func() error { return r.Again(rq.ctx, rq.caller, in) }
		}
		return s.once(rq, func() (int, []byte, error) {
			out, err := h(rq.ctx, rq.caller, in)
			if err != nil {
				return 0, nil, err
			}
			if out == nil {
				out = new(Out)
			}
			for _, f := range fields {
				if v := *(*string)(unsafe.Add(unsafe.Pointer(out), f.off)); v != "" {
					rq.caller.SetHeader(f.name, v)
				}
			}
			if e.out == nil {
				return e.Status, nil, nil
			}
			body, err := Encode(out)
			return e.Status, body, err
		})
	}
	t.add(e)
}

type headerField struct {
	name string
	off  uintptr
}

func headerFields(t reflect.Type) (fields []headerField) {
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if name := f.Tag.Get("header"); name != "" {
			if f.Type.Kind() != reflect.String || f.Tag.Get("json") != "-" {
				panic(fmt.Sprintf("edge: %s.%s: a header field is a string with json:\"-\"", t, f.Name))
			}
			fields = append(fields, headerField{name, f.Offset})
		}
	}
	return fields
}

// HandleStream adds a route that answers with an event stream. The handler only returns the
// Subscriber; its errors are sent as problems.
func HandleStream[In any](t *Table, r Route, h func(ctx context.Context, c *Caller, in *In) (Subscriber, error)) {
	e := &endpoint{Route: r, kind: kindStream, plan: newPlan(t.reg, reflect.TypeFor[In](), r.ID), frames: frameSchema(t.reg, r.Frames)}
	e.serve = func(s *Server, rq *request) error {
		if !acceptsStream(rq.head.accept) {
			return problem.Invalid("Accept", "must permit text/event-stream")
		}
		in := new(In)
		if err := rq.bind(unsafe.Pointer(in)); err != nil {
			return err
		}
		return s.stream(rq, func() (Subscriber, error) { return h(rq.ctx, rq.caller, in) })
	}
	t.add(e)
}

// HandleUpload adds a route that takes files: multipart/form-data with fields named file. The
// files are streamed to the handler.
func HandleUpload[In, Out any](t *Table, r Route, h func(ctx context.Context, c *Caller, in *In, up *Upload) (*Out, error)) {
	if r.MaxFile == 0 {
		r.MaxFile = MaxAttachment
	}
	if r.MaxFiles == 0 {
		r.MaxFiles = 1
	}
	if r.MaxBody == 0 {
		r.MaxBody = int64(r.MaxFiles)*(r.MaxFile+4096) + 4096
	}
	e := &endpoint{Route: r, kind: kindUpload, plan: newPlan(t.reg, reflect.TypeFor[In](), r.ID), out: reflect.TypeFor[Out]()}
	t.reg.Schema(e.out, true, upper(r.ID)+"Answer")
	e.serve = func(s *Server, rq *request) error {
		in := new(In)
		if bad := rq.ep.plan.params(rq, unsafe.Pointer(in)); bad != nil {
			return bad
		}
		up, err := newUpload(rq)
		if err != nil {
			return err
		}
		return s.onceUpload(rq, up, func() (int, []byte, error) {
			out, err := h(rq.ctx, rq.caller, in, up)
			if up.bad != nil {
				err = up.bad // report the cause, whatever error the handler returned
			}
			if err != nil {
				return 0, nil, err
			}
			body, err := Encode(out)
			return e.Status, body, err
		})
	}
	t.add(e)
}

// HandleDownload adds a route that answers with a file.
func HandleDownload[In any](t *Table, r Route, h func(ctx context.Context, c *Caller, in *In) (*Download, error)) {
	e := &endpoint{Route: r, kind: kindDownload, plan: newPlan(t.reg, reflect.TypeFor[In](), r.ID)}
	e.serve = func(s *Server, rq *request) error {
		in := new(In)
		if err := rq.bind(unsafe.Pointer(in)); err != nil {
			return err
		}
		d, err := h(rq.ctx, rq.caller, in)
		if err != nil {
			return err
		}
		rq.download(d)
		return nil
	}
	t.add(e)
}

// HandleRaw adds a route whose bytes only its handler understands: signed hooks, metrics,
// health, assets.
func HandleRaw(t *Table, r Route, h func(ctx context.Context, c *Caller, in *Raw) (*RawAnswer, error)) {
	e := &endpoint{Route: r, kind: kindRaw}
	e.answers(t, r.Answer)
	e.serve = func(s *Server, rq *request) error {
		var body []byte
		if rq.sends() {
			var err error
			if body, err = rq.readBody(); err != nil {
				return err
			}
		}
		in := &Raw{Method: rq.method, Path: string(rq.path), Query: string(rq.query), Body: append([]byte(nil), body...), rq: rq}
		out, err := h(rq.ctx, rq.caller, in)
		in.rq = nil
		if err != nil {
			return err
		}
		rq.raw(out)
		return nil
	}
	t.add(e)
}
