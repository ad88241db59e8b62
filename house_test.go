// Package house checks what docs/architecture.md promises about the structure:
// import directions, one door for each foreign library, pure machines, one
// package comment each, the specification's codes and routes.
package house

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"agentsvc/schemas/problem"
)

type file struct {
	path string // slash-separated, from the top
	dir  string
	test bool
	ast  *ast.File
}

var fset = token.NewFileSet()

// files are all Go files of the module, but not those of nested modules.
var files = func() []file {
	var out []file
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && p != "." || d.Name() == "testdata" || d.Name() == "node_modules" {
				return fs.SkipDir
			}
			if p != "." {
				if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
					return fs.SkipDir
				}
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, file{p, filepath.ToSlash(filepath.Dir(p)), strings.HasSuffix(p, "_test.go"), f})
		return nil
	})
	if err != nil {
		panic(err)
	}
	return out
}()

func (f file) imports() []string {
	var out []string
	for _, im := range f.ast.Imports {
		out = append(out, strings.Trim(im.Path.Value, `"`))
	}
	return out
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func underAny(path string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return under(path, d) })
}

// forTests reports whether only tests import a package.
func forTests(dir string) bool { return strings.HasSuffix(dir, "test") || dir == "schemas/testkit" }

// outbound are the transport packages through which bytes leave.
var outbound = []string{"transport/egress", "transport/model", "transport/mcp", "transport/webhook", "transport/browser", "transport/connector", "transport/trace"}

// toolboxJoins are what the toolbox may import. It joins storage with outbound transport
// for runs and routes, and imports neither of these.
var toolboxJoins = []string{"schemas", "persistence/store", "persistence/vault", "transport/egress", "transport/mcp"}

// schemas <- persistence, cluster <- actors, transport <- cmd.
func TestImportsGoOneWay(t *testing.T) {
	for _, f := range files {
		if f.test || f.dir == "." {
			continue
		}
		for _, im := range f.imports() {
			to, ours := strings.CutPrefix(im, "agentsvc/")
			if !ours {
				continue
			}
			bad := ""
			switch {
			case forTests(to) && !forTests(f.dir):
				bad = "only tests import a package of tests"
			case under(f.dir, "cmd/svc/client"):
				if !underAny(to, "schemas", "cmd/svc/cli") {
					bad = "the command line as a client imports schemas, and what all commands have in common"
				}
			case under(f.dir, "cmd/svc/dev"):
				if !underAny(to, "schemas", "cmd/svc/cli", "cmd/svc/client", "persistence/store", "transport/mcp/demo", "transport/browser/site", "docs") {
					bad = "svc dev imports the rows of its first tenant, the client, the demo tool server, the old back office and the guides"
				}
			case underAny(f.dir, "cmd/svc/cli", "cmd/svc/clitest"):
				if !underAny(to, "schemas") {
					bad = "what all commands have in common imports schemas only"
				}
			case under(f.dir, "schemas"):
				if !under(to, "schemas") {
					bad = "schemas import schemas only"
				}
			case under(f.dir, "persistence"):
				if !underAny(to, "schemas", "persistence") {
					bad = "persistence imports schemas only"
				}
			case under(f.dir, "cluster"):
				if !underAny(to, "schemas", "persistence", "cluster") {
					bad = "cluster imports schemas and persistence only"
				}
			case under(f.dir, "actors"):
				if !underAny(to, "schemas", "persistence", "cluster", "actors/durable", f.dir) {
					bad = "an actor imports no other kind and no transport"
				}
			case underAny(f.dir, outbound...):
				if underAny(to, "actors", "cluster") || under(to, "transport") && !underAny(to, append(outbound, f.dir)...) {
					bad = "outbound transport imports neither actors nor inbound transport"
				}
			case under(f.dir, "transport/toolbox"):
				if !underAny(to, toolboxJoins...) {
					bad = "the toolbox joins the tables that grant tools with the gateway to tool servers, and nothing else"
				}
			case under(f.dir, "transport"):
				if underAny(to, append(outbound, "actors")...) {
					bad = "inbound transport imports neither actors nor outbound transport"
				}
			}
			if bad != "" {
				t.Errorf("%s imports %s: %s", f.path, to, bad)
			}
		}
	}
}

// Each foreign library has one door.
func TestDoors(t *testing.T) {
	doors := map[string][]string{
		"github.com/valyala/fasthttp":                   {"transport/edge"},
		"github.com/fasthttp/router":                    {"transport/edge"},
		"github.com/asynkron/protoactor-go":             {"cluster"},
		"github.com/jackc/pgx":                          {"persistence", "cluster/membership"},
		"github.com/redis/go-redis":                     {"persistence/cache"},
		"github.com/minio/minio-go":                     {"persistence/blob", "transport/connector/objectstore"},
		"github.com/playwright-community/playwright-go": {"transport/browser"},
		"github.com/mark3labs/mcp-go":                   {"transport/mcp"},
		"github.com/lestrrat-go/jwx":                    {"transport/embed/identity"},
		"github.com/evanw/esbuild":                      {"transport/embed/widget/build", "transport/console/app/build"},
		"github.com/spf13/cobra":                        {"cmd/svc"},
		"github.com/fergusstrange/embedded-postgres":    {"persistence/private"},
		"github.com/santhosh-tekuri/jsonschema":         {"schemas"},
		"cel.dev/cel-go":                                {"schemas/flow/expr"},
		"github.com/google/cel-go":                      {"schemas/flow/expr"},
		"github.com/blevesearch/snowballstem":           {"schemas/lexis"},
		"go.yaml.in/yaml":                               {"schemas/flow/source"},
		"github.com/xuri/excelize":                      {"schemas/deliverable"},
		"gopkg.in/yaml.v3":                              {"schemas/flow/source"},
		"github.com/danielgtaylor/huma":                 {"transport/edge", "schemas/api"},
		"google.golang.org/grpc":                        {"cluster/remote"},
		"google.golang.org/protobuf":                    {"cluster/remote"},
		"go.opentelemetry.io/otel":                      {"transport/trace"},
		"go.opentelemetry.io/proto":                     {"transport/trace"},
	}
	for _, f := range files {
		if f.test {
			continue // tests speak to real parts directly
		}
		for _, im := range f.imports() {
			for lib, in := range doors {
				if under(im, lib) && !underAny(f.dir, in...) {
					t.Errorf("%s imports %s: its door is %v", f.path, im, in)
				}
			}
		}
	}
}

// The machine of a kind, in machine.go, state.go and the run's calls.go, touches neither clock
// nor randomness nor goroutines.
func TestPureFiles(t *testing.T) {
	allowed := []string{"bytes", "cmp", "encoding/json", "errors", "fmt", "maps", "math", "slices", "sort", "strconv", "strings", "time", "unicode/utf8",
		"agentsvc/actors/durable"}
	seen := 0
	for _, f := range files {
		name := filepath.Base(f.path)
		if !under(f.dir, "actors") || name != "machine.go" && name != "state.go" && f.path != "actors/run/calls.go" {
			continue
		}
		seen++
		for _, im := range f.imports() {
			if !slices.Contains(allowed, im) && !under(im, "agentsvc/schemas") {
				t.Errorf("%s imports %s", f.path, im)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch v := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine", fset.Position(v.Pos()))
			case *ast.SelectorExpr:
				if x, ok := v.X.(*ast.Ident); ok && (x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "Sleep", "Tick", "NewTimer", "NewTicker", "AfterFunc"}, v.Sel.Name) ||
					x.Name == "id" && strings.HasPrefix(v.Sel.Name, "New")) {
					t.Errorf("%s: %s.%s", fset.Position(v.Pos()), x.Name, v.Sel.Name)
				}
			}
			return true
		})
	}
	if seen < 3 {
		t.Errorf("only %d pure files found: the check is void", seen)
	}
}

// A kind with a machine on the durable host starts no goroutine: making the rows of a
// decision starts no I/O, and the host runs the effects.
func TestKindsOnTheHostStartNoGoroutine(t *testing.T) {
	var kinds []string
	for _, f := range files {
		if under(f.dir, "actors") && !f.test && filepath.Base(f.path) == "machine.go" && slices.Contains(f.imports(), "agentsvc/actors/durable") {
			kinds = append(kinds, f.dir)
		}
	}
	if len(kinds) < 4 {
		t.Errorf("only the kinds %v found: the check is void", kinds)
	}
	for _, f := range files {
		if f.test || !slices.Contains(kinds, f.dir) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine", fset.Position(n.Pos()))
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "AfterFunc") {
					t.Errorf("%s: a goroutine by %s", fset.Position(n.Pos()), sel.Sel.Name)
				}
			}
			return true
		})
	}
}

// What a workflow means depends on its definition and data alone: neither on a clock nor on
// chance, files, the network or goroutines.
func TestWorkflowsArePure(t *testing.T) {
	seen := 0
	for _, f := range files {
		if f.test || !under(f.dir, "schemas/flow") {
			continue
		}
		seen++
		for _, im := range f.imports() {
			if underAny(im, "time", "os", "io/fs", "net", "log", "math/rand", "crypto/rand") {
				t.Errorf("%s imports %s", f.path, im)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if v, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a goroutine", fset.Position(v.Pos()))
			}
			return true
		})
	}
	if seen < 10 {
		t.Errorf("only %d files found: the check is void", seen)
	}
}

func TestOnePackageCommentEach(t *testing.T) {
	comments := map[string]int{}
	for _, f := range files {
		if f.test && f.dir != "." {
			continue
		}
		if _, ok := comments[f.dir]; !ok {
			comments[f.dir] = 0
		}
		if f.ast.Doc != nil {
			comments[f.dir]++
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(comments)) {
		if n := comments[dir]; n != 1 {
			t.Errorf("package %s has %d package comments", dir, n)
		}
	}
}

func TestNoReplaceInGoMod(t *testing.T) {
	b, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "\nreplace") {
		t.Error("go.mod has a replace directive")
	}
}

// Every code of service.md, Errors, and of open-parts.md is in the catalogue
// once, with the specification's status.
func TestCodesOfTheSpecification(t *testing.T) {
	want := map[problem.Code]int{
		"UNAUTHORIZED": 401, "TENANT_REQUIRED": 400, "FORBIDDEN": 403, "VALIDATION": 400, "NOT_FOUND": 404, "RATE_LIMITED": 429,
		"INVALID_SIGNATURE": 401, "INVALID_BODY": 400, "UNKNOWN_TOOL": 400, "AGENT_NOT_PUBLISHED": 409, "WORKFLOW_NOT_PUBLISHED": 409,
		"TRIGGER_DISABLED": 409, "SLUG_TAKEN": 409, "INVALID_URL": 422, "ALREADY_DECIDED": 409, "INVALID_ARGS": 422, "MCP_UNREACHABLE": 502,
		"NAME_TAKEN": 409, "EMBED_KEY_INVALID": 401, "EMBED_KEY_DISABLED": 401, "EMBED_ORIGIN_DENIED": 403, "EMBED_ORIGIN_MISMATCH": 403,
		"EMBED_UNAUTHORIZED": 401, "EMBED_IDENTITY_REQUIRED": 401, "EMBED_IDENTITY_INVALID": 401, "EMBED_IDENTITY_UNAVAILABLE": 401,
		"EMBED_RUN_IN_FLIGHT": 409, "EMBED_THREAD_FULL": 409, "EMBED_TOO_MANY_STREAMS": 429, "EMBED_BUNDLE_UNAVAILABLE": 503,
		"BROWSER_SKILL_NOT_FOUND": 404, "BROWSER_SKILL_INVALID": 400, "BROWSER_SKILL_ATTESTATION_REQUIRED": 400,
		"BROWSER_SKILL_UNAVAILABLE": 503, "BROWSER_SKILL_RUN_FAILED": 502,
		"IDEMPOTENCY_CONFLICT": 409, "IDEMPOTENCY_IN_PROGRESS": 409, "RUN_TERMINAL": 409, "SOURCE_DISABLED": 409, "IN_USE": 409,
		"EMAIL_TAKEN": 409, "LAST_OWNER": 409, "METHOD_NOT_ALLOWED": 405, "PAYLOAD_TOO_LARGE": 413, "UNSUPPORTED_MEDIA_TYPE": 415,
		"UNAVAILABLE": 503, "BAD_REQUEST": 400, "REQUEST_TIMEOUT": 408, "HEADERS_TOO_LARGE": 431, "HTTP_VERSION_NOT_SUPPORTED": 505, "INTERNAL": 500,
	}
	seen := map[problem.Code]bool{}
	for _, e := range problem.Catalogue {
		if seen[e.Code] {
			t.Errorf("%s stands twice in the catalogue", e.Code)
		}
		seen[e.Code] = true
		if status, ok := want[e.Code]; !ok || status != e.Status {
			t.Errorf("%s has status %d in the catalogue, %d in the specification", e.Code, e.Status, status)
		}
		if e.Title == "" || e.When == "" {
			t.Errorf("%s lacks its title or condition", e.Code)
		}
	}
	for code := range want {
		if !seen[code] {
			t.Errorf("%s is missing in the catalogue", code)
		}
	}
}

// Every route that the service has so far, as the specification writes it, is
// in the OpenAPI document (docs/openapi.json, compared with the live one by
// cmd/svc/blackbox), and no other is.
func TestRoutesOfTheSpecification(t *testing.T) {
	want := strings.Fields(`
		GET/healthz GET/readyz GET/metrics GET/v1/openapi.json
		GET/v1/auth/me GET/v1/tenant PATCH/v1/tenant
		GET/v1/api-keys POST/v1/api-keys PATCH/v1/api-keys/{id} DELETE/v1/api-keys/{id}
		GET/v1/agents POST/v1/agents GET/v1/agents/{id} PATCH/v1/agents/{id} DELETE/v1/agents/{id}
		GET/v1/agents/{id}/versions POST/v1/agents/{id}/versions GET/v1/agents/{id}/versions/{version}
		POST/v1/agents/{id}/versions/{version}/publish POST/v1/agents/{id}/runs
		GET/v1/workflows POST/v1/workflows GET/v1/workflows/{id} PATCH/v1/workflows/{id} DELETE/v1/workflows/{id}
		POST/v1/workflows/{id}/versions GET/v1/workflows/{id}/versions/{version} POST/v1/workflows/{id}/versions/{version}/publish
		GET/v1/model-providers POST/v1/model-providers GET/v1/model-providers/{id} PATCH/v1/model-providers/{id} DELETE/v1/model-providers/{id}
		POST/v1/attachments GET/v1/attachments/{id} GET/v1/attachments/{id}/content
		GET/v1/threads POST/v1/threads GET/v1/threads/{id} DELETE/v1/threads/{id}
		GET/v1/threads/{id}/messages POST/v1/threads/{id}/messages
		GET/v1/runs GET/v1/runs/{id} GET/v1/runs/{id}/events POST/v1/runs/{id}/cancel GET/v1/runs/{id}/steps/{idx}
		GET/v1/search GET/v1/tools GET/v1/embed-keys/{id}/denied-origins POST/v1/users/{id}/login-link
		GET/v1/runs/{id}/artifacts GET/v1/runs/{id}/artifacts/{artifactId}
		GET/v1/approvals GET/v1/approvals/{id} POST/v1/approvals/{id}/decision POST/v1/approvals/bulk-decision
		GET/v1/mcp-servers POST/v1/mcp-servers GET/v1/mcp-servers/{id} PATCH/v1/mcp-servers/{id} DELETE/v1/mcp-servers/{id} POST/v1/mcp-servers/{id}/test
		GET/v1/connections POST/v1/connections GET/v1/connections/{id} PATCH/v1/connections/{id} DELETE/v1/connections/{id}
		GET/v1/tool-grants POST/v1/tool-grants GET/v1/tool-grants/{id} PATCH/v1/tool-grants/{id} DELETE/v1/tool-grants/{id}
		GET/v1/approval-policies POST/v1/approval-policies GET/v1/approval-policies/{id} PATCH/v1/approval-policies/{id} DELETE/v1/approval-policies/{id}
		GET/v1/agents/{id}/tools GET/v1/agents/{id}/tools/explain
		POST/v1/auth/login POST/v1/auth/logout POST/v1/auth/password
		GET/v1/users POST/v1/users GET/v1/users/{id} PATCH/v1/users/{id} DELETE/v1/users/{id}
		GET/v1/org-nodes POST/v1/org-nodes GET/v1/org-nodes/{id} PATCH/v1/org-nodes/{id} DELETE/v1/org-nodes/{id}
		PUT/v1/org-nodes/{id}/managers/{user_id} DELETE/v1/org-nodes/{id}/managers/{user_id}
		GET/v1/webhooks POST/v1/webhooks GET/v1/webhooks/{id} PATCH/v1/webhooks/{id} DELETE/v1/webhooks/{id} GET/v1/webhooks/event-types
		POST/v1/webhooks/{id}/rotate-secret POST/v1/webhooks/{id}/test POST/v1/webhooks/{id}/recover
		GET/v1/webhooks/{id}/deliveries GET/v1/webhooks/{id}/deliveries/{delivery_id} POST/v1/webhooks/{id}/deliveries/{delivery_id}/redeliver
		POST/v1/webhooks/listeners POST/v1/webhooks/listeners/{id}/pull DELETE/v1/webhooks/listeners/{id}
		POST/v1/workflows/{id}/runs POST/v1/workflows/{id}/test-run POST/v1/workflows/runs/{runId}/events
		GET/v1/knowledge-bases POST/v1/knowledge-bases GET/v1/knowledge-bases/{id} PATCH/v1/knowledge-bases/{id} DELETE/v1/knowledge-bases/{id}
		POST/v1/knowledge-bases/{id}/search GET/v1/knowledge-bases/{id}/documents POST/v1/knowledge-bases/{id}/documents
		GET/v1/knowledge-bases/{id}/documents/{docId} DELETE/v1/knowledge-bases/{id}/documents/{docId} GET/v1/knowledge-bases/{id}/documents/{docId}/content
		GET/v1/knowledge-bases/{id}/documents/{docId}/acls PUT/v1/knowledge-bases/{id}/documents/{docId}/acls
		GET/v1/knowledge-bases/{id}/connectors POST/v1/knowledge-bases/{id}/connectors GET/v1/knowledge-bases/{id}/connectors/{cid}
		PATCH/v1/knowledge-bases/{id}/connectors/{cid} DELETE/v1/knowledge-bases/{id}/connectors/{cid} POST/v1/knowledge-bases/{id}/connectors/{cid}/sync
		GET/v1/triggers POST/v1/triggers GET/v1/triggers/{id} PATCH/v1/triggers/{id} DELETE/v1/triggers/{id}
		POST/v1/triggers/{id}/rotate-secret POST/v1/triggers/{id}/fire POST/hooks/{trigger}
		GET/v1/embed-keys POST/v1/embed-keys GET/v1/embed-keys/{id} PATCH/v1/embed-keys/{id} DELETE/v1/embed-keys/{id}
		POST/v1/embed-keys/{id}/rotate POST/v1/embed-keys/{id}/identity-secret
		GET/v1/end-users GET/v1/end-users/{id} PATCH/v1/end-users/{id} DELETE/v1/end-users/{id}
		GET/v1/embed/config POST/v1/embed/session POST/v1/embed/messages GET/v1/embed/threads GET/v1/embed/threads/{id}/messages
		POST/v1/embed/runs/{id}/cancel GET/v1/embed/runs/{id}/events GET/embed/v1/widget.js
		GET/v1/browser-skills POST/v1/browser-skills GET/v1/browser-skills/{id} PATCH/v1/browser-skills/{id} DELETE/v1/browser-skills/{id}
		POST/v1/browser-skills/{id}/dry-run GET/v1/browser-skills/{id}/runs GET/v1/browser-skills/runs GET/v1/browser-skills/runs/{runId}
		GET/v1/browser-skills/{id}/grants POST/v1/browser-skills/{id}/grants DELETE/v1/browser-skills/{id}/grants/{grantId}
		GET/v1/browser-skills/artifacts/{key} POST/v1/integrations/attach
		POST/v1/browser-skills/recorder-sessions GET/v1/browser-skills/recorder-sessions/{id} DELETE/v1/browser-skills/recorder-sessions/{id}
		POST/v1/browser-skills/recorder-sessions/{id}/actions POST/v1/browser-skills/recorder-sessions/{id}/finish
		GET/v1/audit GET/v1/usage GET/v1/usage/records
		GET/v1/feed GET/v1/overview GET/v1/stats`)
	b, err := os.ReadFile("docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var have []string
	for path, item := range doc.Paths {
		for method := range item {
			if slices.Contains([]string{"get", "post", "put", "patch", "delete"}, method) {
				have = append(have, strings.ToUpper(method)+path)
			}
		}
	}
	for _, r := range want {
		if !slices.Contains(have, r) {
			t.Errorf("%s is missing in docs/openapi.json", r)
		}
	}
	for _, r := range have {
		if !slices.Contains(want, r) {
			t.Errorf("%s is in docs/openapi.json but not in this list", r)
		}
	}
}

// eachCall calls f with every call of a function of a package in files that are no
// tests, as pkg.Name.
func eachCall(pkg string, f func(f file, name string, call *ast.CallExpr)) {
	for _, in := range files {
		if in.test {
			continue
		}
		ast.Inspect(in.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg {
					f(in, sel.Sel.Name, call)
				}
			}
			return true
		})
	}
}

// The environment is read in cmd/svc; tests and failpoints have their own.
func TestOneReaderOfTheEnvironment(t *testing.T) {
	eachCall("os", func(f file, name string, call *ast.CallExpr) {
		if slices.Contains([]string{"Getenv", "LookupEnv", "Environ"}, name) && !underAny(f.dir, "cmd/svc", "persistence/pgtest", "persistence/failpoint") {
			t.Errorf("%s: os.%s", fset.Position(call.Pos()), name)
		}
	})
}

// Whoever reads beyond a tenant says so where everything is joined (decision 16).
func TestReadsBeyondATenantAreJoinedInCmd(t *testing.T) {
	seen := 0
	eachCall("store", func(f file, name string, call *ast.CallExpr) {
		if name != "System" && name != "NewDirectory" {
			return
		}
		if seen++; !under(f.dir, "cmd/svc") {
			t.Errorf("%s: store.%s", fset.Position(call.Pos()), name)
		}
	})
	if seen < 2 {
		t.Error("neither store.System nor store.NewDirectory is called: the check is void")
	}
}

// A log line's message is a constant; what varies is in its fields.
func TestLogMessagesAreConstant(t *testing.T) {
	seen := 0
	for _, f := range files {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Msg" && sel.Sel.Name != "Msgf" {
				return true
			}
			seen++
			if lit, ok := call.Args[0].(*ast.BasicLit); !ok || lit.Kind != token.STRING || sel.Sel.Name == "Msgf" {
				t.Errorf("%s: a message that is no constant", fset.Position(call.Pos()))
			}
			return true
		})
	}
	if seen < 20 {
		t.Errorf("only %d log lines found: the check is void", seen)
	}
}

// literals are the string literals of a file that match.
func literals(f file, match *regexp.Regexp) []string {
	var out []string
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && match.MatchString(s) {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

// Every metric, variable and check of svc doctor is in the operator guide, and no
// other metric is.
func TestTheOperatorGuideIsComplete(t *testing.T) {
	b, err := os.ReadFile("docs/operator-guide.md")
	if err != nil {
		t.Fatal(err)
	}
	guide := string(b)
	metrics, checks, credentials := map[string]bool{}, 0, 0
	for _, f := range files {
		switch {
		case f.test:
		case slices.Contains(f.imports(), "github.com/prometheus/client_golang/prometheus"):
			for _, name := range literals(f, regexp.MustCompile(`^svc_[a-z]+_[a-z0-9_]+$`)) {
				metrics[name] = true
				if !strings.Contains(guide, "`"+name+"`") {
					t.Errorf("the metric %s is not in docs/operator-guide.md", name)
				}
			}
		case f.dir == "transport/mcp": // the variables in which a stdio server gets its credential
			for _, name := range literals(f, regexp.MustCompile(`^MCP_[A-Z_]+=$`)) {
				name, credentials = "`"+strings.TrimSuffix(name, "=")+"`", credentials+1
				if !strings.Contains(guide, name) || !strings.Contains(read(t, "docs/api-guide.md"), name) {
					t.Errorf("the variable %s of stdio tool servers is not in docs/operator-guide.md and docs/api-guide.md", name)
				}
			}
		case f.path == "cmd/svc/config.go":
			for _, name := range literals(f, regexp.MustCompile(`^(SVC|OPENAI|ANTHROPIC|OTEL)_[A-Z0-9_]+$`)) {
				if !strings.Contains(guide, "`"+name+"`") {
					t.Errorf("the variable %s is not in docs/operator-guide.md", name)
				}
			}
		}
		for _, check := range checksOfDoctor(f) {
			checks++
			if !strings.Contains(guide, "ok  "+check+" ") {
				t.Errorf("the check %q of svc doctor is not in docs/operator-guide.md", check)
			}
		}
	}
	if credentials < 2 {
		t.Error("no variable of stdio tool servers found: the check is void")
	}
	if checks < 10 {
		t.Errorf("only %d checks of svc doctor found: the check is void", checks)
	}
	if len(metrics) < 40 {
		t.Errorf("only %d metrics found: the check is void", len(metrics))
	}
	for _, name := range regexp.MustCompile("`svc_[a-z0-9_]+`").FindAllString(guide, -1) {
		if name = strings.Trim(name, "`"); !metrics[name] && !slices.Contains([]string{"svc_api", "svc_system"}, name) {
			t.Errorf("docs/operator-guide.md names the metric %s, which is none", name)
		}
	}
}

// What docs/architecture.md says is tested, and what .ci/long leaves out of CI, names tests that are there.
func TestTheTestsThatAreNamedExist(t *testing.T) {
	b, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, f := range files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test {
				declared = append(declared, fn.Name.Name)
			}
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)(…?)`").FindAllStringSubmatch(string(b), -1)
	for _, m := range named {
		if !slices.ContainsFunc(declared, func(name string) bool { return name == m[1] || m[2] != "" && strings.HasPrefix(name, m[1]) }) {
			t.Errorf("docs/architecture.md names %s, which is no test", m[1])
		}
	}
	if len(named) < 40 {
		t.Errorf("only %d tests are named: the check is void", len(named))
	}
	long, err := os.ReadFile(".ci/long")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(long)) {
		if !slices.Contains(declared, strings.TrimSpace(name)) {
			t.Errorf(".ci/long names %q, which is no test", name)
		}
	}
}

// The journal writes the tables that kinds describe (journal.Table), and names none of them.
func TestTheJournalNamesNoTableOfAKind(t *testing.T) {
	const journal = "persistence/journal"
	var tables []string
	for _, f := range files {
		if f.test || under(f.dir, journal) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			made, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || made.Sel.Name != "Actors" && made.Sel.Name != "Plain" {
				return true
			}
			if from, ok := made.X.(*ast.Ident); ok && from.Name == "journal" {
				if name, ok := call.Args[0].(*ast.BasicLit); ok {
					tables = append(tables, strings.Trim(name.Value, `"`))
				}
			}
			return true
		})
	}
	if len(tables) < 6 {
		t.Fatalf("only %v are found: the check is void", tables)
	}
	named := regexp.MustCompile(`\b(` + strings.Join(tables, "|") + `)\b`)
	for _, f := range files {
		if f.test || f.dir != journal {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				if name := named.FindString(text.Value); name != "" {
					t.Errorf("%s names the table %s", fset.Position(text.Pos()), name)
				}
			}
			return true
		})
	}
	queries, err := filepath.Glob(journal + "/queries/*.sql")
	if err != nil || len(queries) == 0 {
		t.Fatal(queries, err)
	}
	for _, path := range queries {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if name := named.FindString(string(text)); name != "" {
			t.Errorf("%s names the table %s", path, name)
		}
	}
}

// checksOfDoctor are the names in the lists of feed.Check of a file.
func checksOfDoctor(f file) []string {
	var out []string
	ast.Inspect(f.ast, func(n ast.Node) bool {
		list, ok := n.(*ast.CompositeLit)
		if !ok || f.test {
			return !f.test
		}
		if of, ok := list.Type.(*ast.ArrayType); !ok || !named(of.Elt, "Check") {
			return true
		}
		for _, e := range list.Elts {
			if lit, ok := e.(*ast.CompositeLit); ok && len(lit.Elts) > 0 {
				if name, ok := lit.Elts[0].(*ast.BasicLit); ok {
					out = append(out, strings.Trim(name.Value, `"`))
				}
			}
		}
		return true
	})
	return out
}

// named reports whether a type is called so, in its package or from another one.
func named(of ast.Expr, name string) bool {
	if sel, ok := of.(*ast.SelectorExpr); ok {
		of = sel.Sel
	}
	x, ok := of.(*ast.Ident)
	return ok && x.Name == name
}

// The parts that treat all durable kinds alike go over the list of kinds and name none of
// them: neither by its constant nor by its word.
func TestWhatTreatsAllKindsAlikeNamesNone(t *testing.T) {
	alike := []string{"actors/sweep", "actors/durable", "cluster", "persistence/journal", "persistence/reseal", "persistence/feed", "schemas/msg/codec.go", "cmd/svc/kinds.go"}
	streams := "persistence/feed/feed.go" // reads the streams of runs
	constants, words := map[string]bool{}, map[string]bool{}
	var folders []string
	list := ""
	for _, f := range files {
		if b := filepath.Base(f.path); under(f.dir, "actors") && b == "traits.go" && f.dir != "actors/durable" {
			folders = append(folders, filepath.Base(f.dir))
		}
		if f.path == "cmd/svc/kinds.go" {
			b, err := os.ReadFile(f.path)
			if err != nil {
				t.Fatal(err)
			}
			list = string(b)
		}
		if f.path != "schemas/msg/msg.go" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 && strings.HasPrefix(v.Names[0].Name, "Kind") {
				constants[v.Names[0].Name] = true
				words[strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`)] = true
			}
			return true
		})
	}
	if len(folders) < 5 || len(constants) < 5 {
		t.Fatalf("only the kinds %v and the constants %v found: the check is void", folders, constants)
	}
	for _, k := range folders {
		if n := strings.Count(list, "{"+k+".Traits"); n != 1 {
			t.Errorf("the kind of actors/%s stands %d times in cmd/svc/kinds.go", k, n)
		}
	}
	seen := 0
	for _, f := range files {
		if f.test || f.path == streams || !slices.ContainsFunc(alike, func(p string) bool { return f.path == p || under(f.dir, p) }) {
			continue
		}
		seen++
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec: // one kind has the name of a package
				return false
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "msg" && constants[n.Sel.Name] {
					t.Errorf("%s: msg.%s", fset.Position(n.Pos()), n.Sel.Name)
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && words[strings.Trim(n.Value, "`\"")] {
					t.Errorf("%s: %s", fset.Position(n.Pos()), n.Value)
				}
			}
			return true
		})
	}
	if seen < 25 {
		t.Errorf("only %d files looked at: the check is void", seen)
	}
}

// blackboxImports is what the tests that run the binary may know beside schemas: the
// clients of the API, the database as a test prepares it, and doubles of foreign services.
var blackboxImports = []string{"schemas", "cmd/svc/cli", "cmd/svc/client", "cmd/svc/clitest", "cmd/svc/dev",
	"persistence/blob/blobtest", "persistence/failpoint", "persistence/pg", "persistence/pgtest", "persistence/private",
	"persistence/store", "persistence/vault", // tenants that are made faster than by the command line
	"cluster/placement", // which node owns an id
	"transport/browser/site", "transport/connector/connectortest", "transport/mcp/demo", "transport/mcp/leak", "transport/model/fake"}

// Tests that run the binary are in cmd/svc/blackbox and know no part of the service. The
// tests of cmd/svc itself start no binary.
func TestTheBinaryIsTestedFromOutside(t *testing.T) {
	outside := 0
	for _, f := range files {
		switch f.dir {
		case "cmd/svc/blackbox":
			outside++
			if !f.test && len(f.ast.Decls) > 0 {
				t.Errorf("%s is no test", f.path)
			}
			for _, im := range f.imports() {
				if to, ours := strings.CutPrefix(im, "agentsvc/"); ours && !underAny(to, blackboxImports...) {
					t.Errorf("%s imports %s", f.path, to)
				}
			}
		case "cmd/svc":
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && (named(call.Fun, "Command") || named(call.Fun, "CommandContext")) &&
					slices.ContainsFunc(call.Args, func(a ast.Expr) bool { return isString(a, "go") }) {
					t.Errorf("%s: builds a binary", fset.Position(n.Pos()))
				}
				return true
			})
		}
	}
	if outside < 50 {
		t.Errorf("only %d files found in cmd/svc/blackbox: the check is void", outside)
	}
}

func isString(e ast.Expr, text string) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING && strings.Trim(lit.Value, "`\"") == text
}

// The main package joins the parts and does nothing else: it holds no SQL and no rules,
// registers the durable kinds beside their list, and its wiring stays a short page.
func TestTheCommandOnlyJoins(t *testing.T) {
	rules := []string{"schemas/agent", "schemas/model", "schemas/tool", "schemas/check", "schemas/flow", "schemas/schedule", "schemas/skill"}
	sql := regexp.MustCompile("^[`\"]\\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE|LOCK)\\s")
	const page = 60 // lines
	wired := false
	for _, f := range files {
		if f.dir != "cmd/svc" || f.test {
			continue
		}
		for _, im := range f.imports() {
			if to, ours := strings.CutPrefix(im, "agentsvc/"); ours && underAny(to, rules...) {
				t.Errorf("%s imports %s: its rules are applied elsewhere", f.path, to)
			}
			if im == "os/exec" {
				t.Errorf("%s starts processes: svc dev does that, in cmd/svc/dev", f.path)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING && sql.MatchString(n.Value) {
					t.Errorf("%s: SQL", fset.Position(n.Pos()))
				}
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Register" && f.path != "cmd/svc/kinds.go" {
					if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(f.imports(), "agentsvc/actors/"+x.Name) {
						t.Errorf("%s: %s is registered outside cmd/svc/kinds.go", fset.Position(n.Pos()), x.Name)
					}
				}
			case *ast.FuncDecl:
				if n.Name.Name == "newService" {
					wired = true
					if lines := fset.Position(n.End()).Line - fset.Position(n.Pos()).Line; lines > page {
						t.Errorf("newService has %d lines", lines)
					}
				}
			}
			return true
		})
	}
	if !wired {
		t.Error("there is no newService: the check is void")
	}
}

// Tests share one kit (docs/architecture.md, Tests): they poll with testkit.Eventually and
// testkit.Within, make members with pgtest, and start writers with journaltest.Writer. The
// tests of the binary and of the client wait with a context, in kits of their own.
func TestTestsUseTheKit(t *testing.T) {
	mayInsert := map[string]string{
		"cluster/membership": "it tests the table itself: leases that end within a second, rows of every age",
	}
	inserts := regexp.MustCompile(`(?i)\binsert\s+into\s+members\b`)
	looked := 0
	for _, f := range files {
		if !f.test || f.dir == "." || f.dir == "schemas/testkit" || underAny(f.dir, "cmd/svc/blackbox", "cmd/svc/client") {
			continue
		}
		looked++
		if len(literals(f, inserts)) > 0 && mayInsert[f.dir] == "" {
			t.Errorf("%s writes rows of members: use pgtest.Member, pgtest.Expired or pgtest.Dead", f.path)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ForStmt:
				if givesUp(n) {
					t.Errorf("%s polls until a deadline: use testkit.Eventually or testkit.Within", fset.Position(n.Pos()))
				}
			case *ast.FuncDecl:
				if polls(n.Type, n.Body) {
					t.Errorf("%s is a helper that polls: use testkit.Eventually or testkit.Within", fset.Position(n.Pos()))
				}
			case *ast.FuncLit:
				if polls(n.Type, n.Body) {
					t.Errorf("%s is a helper that polls: use testkit.Eventually or testkit.Within", fset.Position(n.Pos()))
				}
			case *ast.CallExpr:
				if isCall(n, "journal", "New") {
					t.Errorf("%s makes a writer: use journaltest.Writer", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if looked < 100 {
		t.Errorf("only %d test files found: the check is void", looked)
	}
}

func isCall(call *ast.CallExpr, pkg, name string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// givesUp reports whether a loop, apart from the functions in it, gives up after a deadline: it looks whether a time
// has passed, or it goes on until a time and can end earlier. A loop that only lasts until a time is a load.
func givesUp(loop *ast.ForStmt) (up bool) {
	timed, early := false, false
	if loop.Cond != nil {
		ast.Inspect(loop.Cond, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				timed = timed || isNow(call, "Before") || isCall(call, "time", "Since")
			}
			if both, ok := n.(*ast.BinaryExpr); ok && both.Op == token.LAND {
				early = true
			}
			return true
		})
	}
	ast.Inspect(loop, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			up = up || isNow(n, "After")
		case *ast.ReturnStmt:
			early = true
		}
		_, inner := n.(*ast.FuncLit)
		return !inner
	})
	return up || timed && early
}

// isNow reports whether a call compares the present time: time.Now().Before(t).
func isNow(call *ast.CallExpr, how string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != how {
		return false
	}
	now, ok := sel.X.(*ast.CallExpr)
	return ok && isCall(now, "time", "Now")
}

// The ways of waiting that the tests of tests tell apart.
func TestALoopThatGivesUpIsTold(t *testing.T) {
	for loop, want := range map[string]bool{
		"for !done() { if time.Now().After(end) { panic(0) } }":                   true,
		"for end := time.Now(); time.Now().Before(end); { if done() { return } }": true,
		"for n < 200 && time.Now().Before(end) { n++ }":                           true,
		"for !done() && time.Since(begun) < limit { }":                            true,
		"for time.Now().Before(end) { load() }":                                   false,
		"for time.Since(begun) < lasts { go func() { return }(); load() }":        false,
		"for i := range 3 { if took := time.Since(begun); took > limit { i++ } }": false,
		"for !done() { load() }":                                                  false,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; func f() {"+loop+"}", 0)
		if err != nil {
			t.Fatal(err)
		}
		got := false
		ast.Inspect(f, func(n ast.Node) bool {
			if loop, ok := n.(*ast.ForStmt); ok {
				got = got || givesUp(loop)
			}
			return true
		})
		if got != want {
			t.Errorf("%s: %v", loop, got)
		}
	}
}

// polls reports whether a function calls a parameter of the type func() bool in a loop.
func polls(what *ast.FuncType, body *ast.BlockStmt) (found bool) {
	conditions := map[string]bool{}
	for _, p := range what.Params.List {
		f, ok := p.Type.(*ast.FuncType)
		if !ok || len(f.Params.List) > 0 || f.Results == nil || len(f.Results.List) != 1 {
			continue
		}
		if is, ok := f.Results.List[0].Type.(*ast.Ident); ok && is.Name == "bool" {
			for _, name := range p.Names {
				conditions[name.Name] = true
			}
		}
	}
	if len(conditions) == 0 || body == nil {
		return false
	}
	ast.Inspect(body, func(n ast.Node) bool {
		loop, ok := n.(*ast.ForStmt)
		if !ok {
			return true
		}
		ast.Inspect(loop, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if x, ok := call.Fun.(*ast.Ident); ok && conditions[x.Name] {
					found = true
				}
			}
			return true
		})
		return true
	})
	return found
}
