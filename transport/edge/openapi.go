package edge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/api"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

// Info is the head of the OpenAPI document.
type Info struct {
	Title       string
	Version     string
	Description string
	Tags        []Tag
}

// Tag describes one section of the document.
type Tag struct{ Name, Description string }

// OpenAPI returns the OpenAPI 3.1 document of every row that is not hidden. The same table
// gives the same bytes.
func (t *Table) OpenAPI(info Info) ([]byte, error) {
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info:    &huma.Info{Title: info.Title, Version: info.Version, Description: info.Description},
		Servers: []*huma.Server{{URL: "/"}},
		Paths:   map[string]*huma.PathItem{},
	}
	b := docBuilder{t: t}
	used := map[string]bool{}
	for _, e := range t.endpoints {
		if e.Hidden {
			continue
		}
		path := strings.ReplaceAll(e.Path, "...}", "}")
		item := doc.Paths[path]
		if item == nil {
			item = &huma.PathItem{}
			doc.Paths[path] = item
		}
		op := b.operation(e)
		switch e.Method {
		case http.MethodGet:
			item.Get = op
		case http.MethodPost:
			item.Post = op
		case http.MethodPut:
			item.Put = op
		case http.MethodPatch:
			item.Patch = op
		case http.MethodDelete:
			item.Delete = op
		case http.MethodOptions:
			item.Options = op
		}
		if e.Tag != "" {
			used[e.Tag] = true
		}
	}
	for _, tag := range info.Tags {
		doc.Tags = append(doc.Tags, &huma.Tag{Name: tag.Name, Description: tag.Description})
		delete(used, tag.Name)
	}
	rest := make([]string, 0, len(used))
	for name := range used {
		rest = append(rest, name)
	}
	sort.Strings(rest)
	for _, name := range rest {
		doc.Tags = append(doc.Tags, &huma.Tag{Name: name})
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode openapi: %w", err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, fmt.Errorf("encode openapi: %w", err)
	}
	schemas, err := b.schemas()
	if err != nil {
		return nil, err
	}
	tree["components"] = map[string]any{
		"schemas": schemas,
		"securitySchemes": map[string]any{
			"key":          map[string]any{"type": "http", "scheme": "bearer", "description": "An API key (svc_…). It needs X-Tenant-Id beside it."},
			"tenant":       map[string]any{"type": "apiKey", "in": "header", "name": "X-Tenant-Id", "description": "The tenant of the key."},
			"session":      map[string]any{"type": "apiKey", "in": "cookie", "name": "svc_session", "description": "A console session. Requests that change something need X-Svc-CSRF: 1 or a matching Origin."},
			"embed":        map[string]any{"type": "http", "scheme": "bearer", "description": "An embed session token, from the origin that it was minted for."},
			SchemeEmbedKey: map[string]any{"type": "apiKey", "in": "header", "name": "X-Svc-Embed-Key", "description": "A publishable key (svc_pk_…), from an origin that it allows."},
		},
	}
	resolve(tree)
	return json.Marshal(tree)
}

type docBuilder struct{ t *Table }

const problemSchema = "Problem"

// identityReasons are the reasons of service.md, Authentication, Embed.
var identityReasons = []string{"malformed", "alg", "signature", "expired", "claims", "exp_too_far", "iat_in_future", "not_yet_valid"}

// schemas returns the components, including the problem format.
func (b *docBuilder) schemas() (map[string]any, error) {
	all := map[string]any{problemSchema: map[string]any{
		"type":        "object",
		"description": "RFC 9457 problem. Clients branch on code, never on title.",
		"required":    []string{"type", "title", "status", "code"},
		"properties": map[string]any{
			"type":        map[string]any{"type": "string", "const": "about:blank", "description": "Always about:blank."},
			"title":       map[string]any{"type": "string", "description": "For people; it may change."},
			"status":      map[string]any{"type": "integer", "description": "The HTTP status."},
			"code":        map[string]any{"type": "string", "enum": codes(), "description": "Stable."},
			"detail":      map[string]any{"type": "string", "description": "What went wrong here. For VALIDATION: <field path>: <message> pairs, separated by a semicolon and a space."},
			"retry_after": map[string]any{"type": "integer", "description": "Seconds, as in Retry-After."},
			"run_id":      map[string]any{"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36, "description": "For EMBED_RUN_IN_FLIGHT: the run to wait for, or to cancel."},
			"reason":      map[string]any{"type": "string", "enum": identityReasons, "description": "For EMBED_IDENTITY_INVALID: why the identity token is refused."},
			"errors":      map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "description": "For MCP_UNREACHABLE: what the tool server, or the way to it, answered."},
			"extensions": map[string]any{
				"type":        "object",
				"description": "For BROWSER_SKILL_RUN_FAILED: the run that did not land, and its fault.",
				"required":    []string{"code", "run_id"},
				"properties": map[string]any{
					"code":      map[string]any{"type": "string", "enum": skill.Codes, "description": "Stable."},
					"run_id":    map[string]any{"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36, "description": "The run of the skill."},
					"step_id":   map[string]any{"type": "string", "description": "The step that failed."},
					"selectors": map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "description": "The selectors that were tried."},
					"field":     map[string]any{"type": "string", "description": "The field of the preview or of the result."},
					"url":       map[string]any{"type": "string", "description": "The page."},
				},
			},
		},
	}}
	raw, err := json.Marshal(b.t.reg.schemas)
	if err != nil {
		return nil, fmt.Errorf("encode schemas: %w", err)
	}
	var own map[string]any
	if err := json.Unmarshal(raw, &own); err != nil {
		return nil, fmt.Errorf("encode schemas: %w", err)
	}
	for name, s := range own {
		if _, clash := all[name]; clash {
			return nil, fmt.Errorf("the schema name %s is taken", name)
		}
		if text := b.t.docs[b.t.reg.types[name]]; text != "" {
			s.(map[string]any)["description"] = text
		}
		all[name] = s
	}
	return all, nil
}

func codes() []string {
	all := make([]string, len(problem.Catalogue))
	for i, e := range problem.Catalogue {
		all[i] = string(e.Code)
	}
	return all
}

// resolve replaces what the schemas of validation only hint at: components shown in place of
// others, references that may be null, enums with null.
func resolve(v any) {
	switch v := v.(type) {
	case map[string]any:
		if shown, ok := v[api.ShownAs]; ok {
			delete(v, api.ShownAs)
			v["$ref"] = shown
			return
		}
		if v[nullableRef] == true {
			ref := v["$ref"]
			delete(v, nullableRef)
			delete(v, "$ref")
			v["anyOf"] = []any{map[string]any{"$ref": ref}, map[string]any{"type": "null"}}
			return
		}
		if values, ok := v["enum"].([]any); ok {
			if types, ok := v["type"].([]any); ok && len(types) == 2 && (len(values) == 0 || values[len(values)-1] != nil) {
				v["enum"] = append(values, nil)
			}
		}
		for _, c := range v {
			resolve(c)
		}
	case []any:
		for _, c := range v {
			resolve(c)
		}
	}
}

func (b *docBuilder) operation(e *endpoint) *huma.Operation {
	op := &huma.Operation{
		OperationID: e.ID,
		Summary:     e.Summary,
		Description: e.Description,
		Responses:   map[string]*huma.Response{},
		Security:    []map[string][]string{},
	}
	if e.Tag != "" {
		op.Tags = []string{e.Tag}
	}
	switch {
	case e.Auth != nil:
		op.Security = append(op.Security, map[string][]string{cmp.Or(e.Scheme, "embed"): {}})
	case e.Role != "":
		op.Security = append(op.Security, map[string][]string{"key": {}, "tenant": {}}, map[string][]string{"session": {}})
		if op.Description != "" {
			op.Description += "\n\n"
		}
		op.Description += "Least role: " + string(e.Role) + "."
	}
	b.parameters(e, op)
	b.body(e, op)
	b.success(e, op)
	b.failures(e, op)
	return op
}

func (b *docBuilder) parameters(e *endpoint, op *huma.Operation) {
	for _, f := range e.Params {
		op.Parameters = append(op.Parameters, &huma.Param{Name: f.Name, In: "header", Description: f.Description, Schema: &huma.Schema{Type: huma.TypeString}})
	}
	if e.Tagged {
		op.Parameters = append(op.Parameters, &huma.Param{Name: "If-None-Match", In: "header", Description: "The ETag of the answer that the caller has.", Schema: &huma.Schema{Type: huma.TypeString}})
	}
	known := map[string]bool{}
	if e.plan != nil {
		for _, group := range []struct {
			in     string
			params []param
		}{{"path", e.plan.path}, {"query", e.plan.query}, {"header", e.plan.header}} {
			for _, p := range group.params {
				s := *p.schema
				description := s.Description
				s.Description = ""
				op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: group.in, Required: p.required, Description: description, Schema: &s})
				known[p.name] = true
			}
		}
	}
	for _, name := range e.params {
		if !known[name] {
			op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
	}
	if e.Idempotent {
		one, most := 1, 255
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: "Idempotency-Key", In: "header",
			Description: "Repeating a request with the same key within 24 hours returns the first response and does nothing.",
			Schema:      &huma.Schema{Type: huma.TypeString, MinLength: &one, MaxLength: &most},
		})
	}
}

func (b *docBuilder) body(e *endpoint, op *huma.Operation) {
	switch {
	case e.kind == kindUpload:
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"multipart/form-data": {Schema: &huma.Schema{
				Type:       huma.TypeObject,
				Required:   []string{"file"},
				Properties: map[string]*huma.Schema{"file": b.fileSchema(e)},
			}, Example: e.Example},
		}}
	case e.plan != nil && e.plan.hasBody && e.Method != http.MethodGet:
		m := &huma.MediaType{Schema: e.plan.schema}
		if e.Example != nil {
			m.Example = e.Example
		}
		op.RequestBody = &huma.RequestBody{Required: !e.plan.optional, Content: map[string]*huma.MediaType{"application/json": m}}
	case e.kind == kindRaw && e.Method == http.MethodPost:
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/json": {Schema: &huma.Schema{Type: huma.TypeObject}, Example: e.Example},
		}}
	}
}

func (b *docBuilder) fileSchema(e *endpoint) *huma.Schema {
	file := &huma.Schema{Type: huma.TypeString, Format: "binary", Description: fmt.Sprintf("Up to %d bytes.", e.MaxFile)}
	if e.MaxFiles == 1 {
		return file
	}
	one := 1
	return &huma.Schema{Type: huma.TypeArray, Items: file, MinItems: &one, MaxItems: &e.MaxFiles}
}

func (b *docBuilder) success(e *endpoint, op *huma.Operation) {
	r := &huma.Response{Description: http.StatusText(e.Status), Headers: map[string]*huma.Header{
		"X-Request-Id": {Description: "Names the request in the service's log.", Schema: &huma.Schema{Type: huma.TypeString}},
	}}
	op.Responses[strconv.Itoa(e.Status)] = r
	if e.limited() {
		describeLimit(r)
	}
	for _, f := range e.Headers {
		r.Headers[f.Name] = &huma.Header{Description: f.Description, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	if e.Tagged {
		r.Headers["ETag"] = &huma.Header{Description: "Names this content; If-None-Match takes it.", Schema: &huma.Schema{Type: huma.TypeString}}
		op.Responses[strconv.Itoa(http.StatusNotModified)] = &huma.Response{Description: "Not Modified: the caller has this content.",
			Headers: map[string]*huma.Header{"X-Request-Id": r.Headers["X-Request-Id"], "ETag": r.Headers["ETag"]}}
	}
	if e.Idempotent {
		r.Headers["Idempotency-Replayed"] = &huma.Header{Description: "true when this is the first response, replayed.", Schema: &huma.Schema{Type: huma.TypeString}}
	}
	switch e.kind {
	case kindJSON, kindUpload:
		if e.out != nil {
			r.Content = map[string]*huma.MediaType{"application/json": {Schema: b.t.reg.Schema(e.out, true, ""), Example: e.Answer}}
		}
	case kindStream:
		r.Description = "Server-sent events. Each frame has an event line with its type, an id line (except heartbeat) and a data line with the JSON described here."
		r.Content = map[string]*huma.MediaType{"text/event-stream": {Schema: e.frames, Examples: frameExamples(e.Frames)}}
	case kindDownload, kindRaw:
		mediaType := e.MediaType
		if mediaType == "" {
			mediaType = "application/octet-stream"
		}
		s := &huma.Schema{Type: huma.TypeString}
		switch {
		case e.out != nil:
			s = b.t.reg.Schema(e.out, true, "")
		case mediaType == "application/json":
			s = &huma.Schema{Type: huma.TypeObject}
		case !strings.HasPrefix(mediaType, "text/"):
			s.Format = "binary"
		}
		if e.Status != http.StatusNoContent {
			r.Content = map[string]*huma.MediaType{mediaType: {Schema: s, Example: e.Answer}}
		}
	}
}

// frameSchema lists what a data line may hold. It runs when the route is added: the registry
// must not change afterwards.
func frameSchema(reg *registry, frames []Frame) *huma.Schema {
	if len(frames) == 0 {
		return &huma.Schema{Type: huma.TypeString}
	}
	one := &huma.Schema{}
	for _, f := range frames {
		s := &huma.Schema{
			Title:       string(f.Type),
			Description: f.Doc,
			Type:        huma.TypeObject,
			Required:    []string{"type"},
			Properties:  map[string]*huma.Schema{"type": {Type: huma.TypeString, Enum: []any{string(f.Type)}}},
		}
		if f.Data != nil {
			data := huma.SchemaFromType(reg, reflect.TypeOf(f.Data))
			for name, p := range data.Properties {
				s.Properties[name] = p
			}
			s.Required = append(s.Required, data.Required...)
		}
		one.AnyOf = append(one.AnyOf, s)
	}
	return one
}

// frameExamples returns the example frames of the rows.
func frameExamples(frames []Frame) map[string]*huma.Example {
	all := map[string]*huma.Example{}
	for _, f := range frames {
		one := map[string]any{}
		if raw, err := json.Marshal(f.Data); f.Data != nil && err == nil {
			_ = json.Unmarshal(raw, &one) // of a struct: always an object
		}
		one["type"] = string(f.Type)
		all[string(f.Type)] = &huma.Example{Value: one}
	}
	return all
}

// limited reports whether calls of the route are charged to a bucket.
func (e *endpoint) limited() bool {
	return e.Bucket != BucketNone || slices.Contains(e.Codes, problem.CodeRateLimited)
}

// describeLimit adds the header fields that report the limit a call was charged to.
func describeLimit(r *huma.Response) {
	if r.Headers == nil {
		r.Headers = map[string]*huma.Header{}
	}
	for i, text := range [...]string{"Requests that the limit allows at once.", "Requests that it allows now.", "Seconds until it allows all of them again, if no more come."} {
		r.Headers[rateNames[i]] = &huma.Header{Description: text, Schema: &huma.Schema{Type: huma.TypeInteger}}
	}
}

// failures lists the problems of a route by status, each code with an example.
func (b *docBuilder) failures(e *endpoint, op *huma.Operation) {
	codes := append([]problem.Code{problem.CodeBadRequest}, e.Codes...)
	if e.limited() {
		codes = append(codes, problem.CodeRateLimited)
	}
	if !e.public() && e.Auth == nil {
		codes = append(codes, problem.CodeUnauthorized, problem.CodeTenantRequired, problem.CodeForbidden)
	}
	reads := e.kind == kindUpload || e.plan != nil && e.Method != http.MethodGet
	if reads || e.plan != nil && len(e.plan.query)+len(e.plan.header) > 0 {
		codes = append(codes, problem.CodeValidation)
	}
	if len(e.params) > 0 {
		codes = append(codes, problem.CodeNotFound)
	}
	if reads {
		codes = append(codes, problem.CodePayloadTooLarge, problem.CodeUnsupportedMediaType)
	}
	if e.Idempotent {
		codes = append(codes, problem.CodeIdempotencyConflict, problem.CodeIdempotencyInProgress)
	}
	if e.Bucket != BucketNone || e.Auth != nil || e.Charge != nil || e.kind == kindStream { // routes that read storage or a bucket
		codes = append(codes, problem.CodeUnavailable, problem.CodeInternal)
	}
	seen := map[problem.Code]bool{}
	for _, c := range codes {
		if seen[c] {
			continue
		}
		seen[c] = true
		row := problem.Lookup(c)
		status := strconv.Itoa(row.Status)
		r := op.Responses[status]
		if r == nil {
			r = &huma.Response{Content: map[string]*huma.MediaType{problemType: {
				Schema:   &huma.Schema{Ref: schemaPrefix + problemSchema},
				Examples: map[string]*huma.Example{},
			}}}
			op.Responses[status] = r
		}
		if r.Description != "" {
			r.Description += "; "
		}
		r.Description += string(c) + ": " + row.When
		ex := &problem.Error{Code: c, Detail: row.When}
		if c == problem.CodeUnauthorized {
			r.Headers = map[string]*huma.Header{"WWW-Authenticate": {Description: "Bearer.", Schema: &huma.Schema{Type: huma.TypeString}}}
		}
		if c == problem.CodeRateLimited || c == problem.CodeUnavailable || c == problem.CodeIdempotencyInProgress {
			ex.RetryAfter = time.Second
			r.Headers = map[string]*huma.Header{"Retry-After": {Description: "Seconds.", Schema: &huma.Schema{Type: huma.TypeInteger}}}
		}
		if row.Status == http.StatusTooManyRequests {
			describeLimit(r)
		}
		r.Content[problemType].Examples[string(c)] = &huma.Example{Summary: row.Title, Value: ex}
	}
}

// HandleOpenAPI adds GET path, which serves the document without a key.
func HandleOpenAPI(t *Table, path string, info Info) {
	document := sync.OnceValues(func() (*Static, error) {
		doc, err := t.OpenAPI(info)
		if err != nil {
			return nil, err
		}
		return NewStatic("application/json", doc), nil
	})
	HandleRaw(t, Route{
		Method: http.MethodGet, Path: path, ID: "getOpenAPI", Summary: "The OpenAPI document", Tag: "Service",
		Description: "The live description of this interface; needs no key.", MediaType: "application/json", Tagged: true,
		Answer: map[string]any{"openapi": "3.1.0", "info": map[string]any{"title": info.Title, "version": info.Version}, "paths": map[string]any{}},
	}, func(_ context.Context, _ *Caller, in *Raw) (*RawAnswer, error) {
		f, err := document()
		if err != nil {
			return nil, err
		}
		return f.Answer(in, Header{"Cache-Control", "no-cache"}), nil
	})
}
