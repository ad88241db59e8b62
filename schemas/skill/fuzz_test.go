package skill

import (
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// FuzzParse: a document is refused as a problem, or what is stored of it means the same again, its
// tools have usable schemas, and its first page is in scope.
func FuzzParse(f *testing.F) {
	f.Add([]byte(full), []byte(`{}`), []byte(fullAuth))
	f.Add([]byte(`{"start_url": "https://a.example/", "target_hosts": ["a.example"], "steps": [{"id": "a", "kind": "wait", "value": 1}]}`), []byte(`{"approval": "none_for_idempotent_reads", "risk_level": "low"}`), []byte(`null`))
	f.Add([]byte(`{"start_url": "https://a.example/", "target_hosts": ["a.example"], "steps": [null, 1, {"id": "a", "kind": "navigate", "value": "https://a.example/{{x}}"}], "params": [null, {"name": "x", "type": "enum", "enum": [null]}]}`), []byte(`[]`), []byte(`{"mode": "cookies", "secrets": {"a": "[{}]"}}`))
	f.Add([]byte(`{"start_url": "http://[::1]:0/", "target_hosts": ["[::1]"], "steps": []}`), []byte(``), []byte(`{`))
	f.Fuzz(func(t *testing.T, definition, policy, auth []byte) {
		s, err := Parse(Input{Definition: definition, Policy: policy, Auth: auth, OwnerAttested: true})
		if err != nil {
			var p *problem.Error
			if !errors.As(err, &p) || p.Code != problem.CodeValidation && p.Code != problem.CodeBrowserSkillInvalid || p.Detail == "" {
				t.Fatalf("refused as a fault of ours: %v", err)
			}
			return
		}
		doc, err := json.Marshal(s.Definition)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(Input{Definition: doc, Policy: policy, Auth: auth, OwnerAttested: true})
		if err != nil {
			t.Fatalf("%s\nis refused when it is saved again: %v", doc, err)
		}
		if twice, err := json.Marshal(again.Definition); err != nil || string(twice) != string(doc) {
			t.Fatalf("%s\nbecomes %s", doc, twice)
		}
		loaded, err := Load(doc)
		if err != nil {
			t.Fatal(err)
		}
		if reason := (Scope{Hosts: loaded.TargetHosts}).Allows(loaded.StartURL); reason != "" {
			t.Fatalf("%q %s %q", loaded.StartURL, reason, loaded.TargetHosts)
		}
		for _, form := range []Form{ForRun, ForDryRun, ForEdit} {
			if err := tool.CheckSchema(t.Context(), ToolSchema(loaded, form)); err != nil {
				t.Fatalf("%s: %v", ToolSchema(loaded, form), err)
			}
		}
		if before, commit, _ := loaded.Split(); (commit == nil) != (loaded.CommitStepID == "") || len(before) > MaxSteps {
			t.Fatalf("%s has the commit step %v", doc, commit)
		}
	})
}

// FuzzBind: whatever a model sends, the values that are accepted are clean, fit the tool's schema,
// bind to themselves, and open only addresses of the skill's host.
func FuzzBind(f *testing.F) {
	address := Text("https://h.example:8443/a/{{s}}/{{n}}?q={{s}}&d={{d}}")
	low, high := -5.5, 1e6
	d := &Definition{
		TargetHosts: []string{"h.example:8443"},
		Params: []Param{
			{Name: "s", Type: String, MaxLength: 20, Pattern: "^[^!]*$", AllowInURL: true}, {Name: "n", Type: Number, Min: &low, Max: &high, AllowInURL: true},
			{Name: "i", Type: Integer}, {Name: "b", Type: Boolean}, {Name: "e", Type: Enum, Enum: []string{"a", " b"}}, {Name: "d", Type: Date, AllowInURL: true},
		},
		Steps: []Step{{ID: "1", Kind: Navigate, Value: &address}, {ID: "2", Kind: Type, Param: "i"}, {ID: "3", Kind: Tick, Param: "b"}, {ID: "4", Kind: Select, Param: "e"}},
	}
	for _, args := range []string{
		`{"s": "..", "n": 1, "d": "2024-02-29"}`, `{"s": "a/b?c#d%2e", "n": "1e2", "d": "2024-02-29", "reason": "x"}`, `{"i": 9007199254740993, "b": "TRUE", "e": " b"}`,
		`{"s": "\u202e\u0000\n", "e": "b"}`, `{"n": 1e-99999999999}`, `{"s": {"a": []}}`, `{"reason": "\ud800"}`, `[]`, `{"s":"` + strings.Repeat("ü", 20) + `","n":0,"d":"2024-01-01"}`,
	} {
		f.Add([]byte(args))
	}
	schema := ToolSchema(d, ForEdit)
	f.Fuzz(func(t *testing.T, args []byte) {
		b, faults, err := d.Bind(t.Context(), ForEdit, args)
		if err != nil {
			t.Fatal(err)
		}
		if len(faults) > 0 {
			return
		}
		doc := b.Values.JSON()
		if err := tool.Check(t.Context(), schema, doc); err != nil {
			t.Fatalf("%s binds to %s: %v", args, doc, err)
		}
		again, faults, err := d.Bind(t.Context(), ForEdit, doc)
		if err != nil || len(faults) > 0 || string(again.Values.JSON()) != string(doc) {
			t.Fatalf("%s binds to %s: %v %v", doc, again.Values.JSON(), faults, err)
		}
		for _, name := range b.Values.Names() {
			if text, _ := b.Values.Text(name); strings.ContainsFunc(text, unsafe) {
				t.Fatalf("%s is %q", name, text)
			}
		}
		open, ok := d.Steps[0].ValueOf(b.Values)
		if !ok {
			return
		}
		u, err := url.Parse(open)
		if err != nil || u.Host != "h.example:8443" || u.User != nil || u.Fragment != "" || (Scope{Hosts: d.TargetHosts}).Allows(open) != "" || u.JoinPath().EscapedPath() != u.EscapedPath() {
			t.Fatalf("%s opens %s: %v", args, open, err)
		}
		if segments := strings.Split(u.EscapedPath(), "/"); len(segments) != 4 || slices.Contains(segments, "") && segments[0] != "" {
			t.Fatalf("%s opens %s", args, open)
		}
	})
}

// FuzzScope: an address that is allowed is, for another parser too, http or https on exactly one of
// the hosts.
func FuzzScope(f *testing.F) {
	for _, s := range []string{"https://h.example/", "https://h.example:443/a?b", "http://h.example/", "https://evil.test\\@h.example/", "https://h.example@evil.test/", "https://H.EXAMPLE", "https://h.example:8443#x", "https://h.example:08443/", "https://h.example?x", "about:blank"} {
		f.Add(s)
	}
	hosts := []string{"h.example", "h.example:8443"}
	f.Fuzz(func(t *testing.T, s string) {
		if (Scope{Hosts: hosts}).Allows(s) != "" {
			return
		}
		u, err := url.Parse(s[:len(s)-len(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:/.0123456789-"))])
		if end := strings.IndexAny(s, "?#"); end >= 0 {
			u, err = url.Parse(s[:end])
		}
		if err != nil {
			return // the path is strange to Go; what comes before it was read above
		}
		port := strings.TrimLeft(u.Port(), "0")
		if u.User != nil || !strings.EqualFold(u.Hostname(), "h.example") || port != "" && port != "443" && port != "8443" || port == "" && !strings.EqualFold(u.Scheme, "https") {
			t.Fatalf("%q is allowed: host %q port %q", s, u.Hostname(), port)
		}
		if (Scope{Hosts: hosts, Residency: Residency{"*.h.example"}}).Allows(s) != OutsideResidency || (Scope{Hosts: hosts, Residency: Residency{"*.example"}}).Allows(s) != "" {
			t.Fatalf("%q: residency", s)
		}
	})
}
