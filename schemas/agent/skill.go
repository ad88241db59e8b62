package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"agentsvc/schemas/flow/scan"
)

// WithSkill returns a valid manifest that allows the operations of a browser skill besides what it
// allows already; changed is false if it did. All else stays as it was sent, in its order. The
// result may break a limit of the manifest, and the error names it.
func WithSkill(ctx context.Context, manifest json.RawMessage, slug string, ops []string) (merged json.RawMessage, changed bool, err error) {
	m, err := Load(manifest)
	if err != nil {
		return nil, false, err
	}
	uses := m.Tools.BrowserSkills
	at := slices.IndexFunc(uses, func(u BrowserSkillUse) bool { return u.Skill == slug })
	if at < 0 {
		uses = append(uses, BrowserSkillUse{Skill: slug, Allow: []string{}})
		at = len(uses) - 1
	}
	allowed := func(op string) bool {
		return slices.ContainsFunc(uses, func(u BrowserSkillUse) bool { return u.Skill == slug && slices.Contains(u.Allow, op) })
	}
	for _, op := range skillOps {
		if slices.Contains(ops, op) && !allowed(op) {
			uses[at].Allow, changed = append(uses[at].Allow, op), true
		}
	}
	if !changed {
		return manifest, false, nil
	}
	list, err := json.Marshal(uses)
	if err != nil {
		return nil, false, err
	}
	tools, ok := scan.Member(manifest, "tools")
	if !ok || scan.KindOf(tools) != scan.Object {
		tools = []byte("{}")
	}
	merged = withMember(manifest, "tools", withMember(tools, "browser_skills", list))
	// A manifest that was stored before null was refused may hold it.
	return merged, true, validate(ctx, "manifest", merged, true)
}

// withMember returns an object with one member replaced, or added behind the others.
func withMember(object []byte, name string, value []byte) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	put := func(key string, value []byte) {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		text, err := json.Marshal(key)
		if err != nil {
			panic(err) // a text always encodes
		}
		b.Write(text)
		b.WriteByte(':')
		b.Write(value)
	}
	there := false
	scan.Members(object, func(key string, old []byte) bool {
		if key == name {
			there, old = true, value
		}
		put(key, old)
		return true
	})
	if !there {
		put(name, value)
	}
	b.WriteByte('}')
	return b.Bytes()
}
