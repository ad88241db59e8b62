package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Granting a skill to an agent merges it into the manifest: all else stays as it was sent.
func TestWithSkill(t *testing.T) {
	t.Parallel()
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf(`{"skill":"s%d"}`, i)
	}
	for _, c := range []struct {
		name, manifest string
		ops            []string
		want           string // empty: unchanged
		fails          string
	}{
		{"no tools", `{` + model + `, "instructions": "Hi {\"tools\":1}"}`, []string{"run"}, `{"model":` + model[len(`"model":`):] + `,"instructions":"Hi {\"tools\":1}","tools":{"browser_skills":[{"skill":"portal","allow":["run"]}]}}`, ""},
		{"other tools stay", `{"tools":{"builtin":["kb.search"]},` + model + `}`, []string{"dry_run", "run"}, `{"tools":{"builtin":["kb.search"],"browser_skills":[{"skill":"portal","allow":["run","dry_run"]}]},` + model + `}`, ""},
		{"an operation more", `{` + model + `,"tools":{"browser_skills":[{"skill":"portal","allow":["run"]},{"skill":"other"}]}}`, []string{"run", "dry_run"},
			`{` + model + `,"tools":{"browser_skills":[{"skill":"portal","allow":["run","dry_run"]},{"skill":"other","allow":["run","dry_run"]}]}}`, ""},
		{"both by default", `{` + model + `,"tools":{"browser_skills":[{"skill":"portal"}]}}`, []string{"run", "dry_run"}, "", ""},
		{"101 skills", `{` + model + `,"tools":{"browser_skills":[` + strings.Join(many, ",") + `]}}`, []string{"run"}, "", "manifest.tools.browser_skills"},
	} {
		got, changed, err := WithSkill(t.Context(), json.RawMessage(c.manifest), "portal", c.ops)
		switch {
		case c.fails != "":
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v", c.name, err)
			}
		case err != nil || changed != (c.want != "") || changed && squeeze(t, string(got)) != squeeze(t, c.want) || !changed && string(got) != c.manifest:
			t.Errorf("%s: %v %v\n%s\nwant\n%s", c.name, changed, err, got, c.want)
		}
	}
}

func squeeze(t *testing.T, doc string) string {
	t.Helper()
	var b strings.Builder
	inText := false
	for i, r := range doc {
		if r == '"' && (i == 0 || doc[i-1] != '\\') {
			inText = !inText
		}
		if inText || r != ' ' {
			b.WriteRune(r)
		}
	}
	if !json.Valid([]byte(doc)) {
		t.Errorf("no JSON: %s", doc)
	}
	return b.String()
}
