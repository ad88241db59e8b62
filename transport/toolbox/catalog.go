package toolbox

import (
	"context"
	"math"
	"slices"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

// catalog calls take with the last known list of each enabled server, in the order of qualified
// names from from on, until take returns false or lists of most bytes were read. all reports that
// take had every list.
func (b *Toolbox) catalog(ctx context.Context, t id.TenantID, from string, most int, take func(*store.ServerTools) bool) (all bool, err error) {
	for n := firstRead; most > 0; {
		bound := store.Bound{Bytes: api.MaxListBytes}
		read, err := b.Tables.View(t).Bounded(&bound).Catalog(ctx, from, n)
		if err != nil {
			return false, err
		}
		for _, s := range read {
			if !take(s) {
				return false, nil
			}
			from = s.After()
		}
		if !bound.Cut && len(read) < n {
			return true, nil
		}
		if bound.Cut { // the database reads all n to know which fit
			n = firstRead
		} else {
			n = min(2*n, lastRead)
		}
		most -= api.MaxListBytes - bound.Bytes
	}
	return false, nil
}

// How many lists one read of a catalog takes.
const (
	firstRead = 16
	lastRead  = 64
)

// All implements platform.Tools: the last known lists of the enabled servers, the enabled browser
// skills, and the builtin tools.
func (b *Toolbox) All(ctx context.Context, t id.TenantID, after string, limit int) ([]tool.Listed, bool, error) {
	out, last, err := b.serversAfter(ctx, t, after, limit)
	if err != nil {
		return nil, false, err
	}
	rest, lastRest, err := b.restAfter(ctx, t, after, limit)
	if err != nil {
		return nil, false, err
	}
	out = append(out, rest...)
	for _, end := range []string{last, lastRest} {
		if end != "" {
			out = slices.DeleteFunc(out, func(l tool.Listed) bool { return l.Qualified() > end })
		}
	}
	byName(out)
	more := last != "" || lastRest != "" || len(out) > limit
	return out[:min(len(out), limit)], more, nil
}

func byName(tools []tool.Listed) {
	slices.SortStableFunc(tools, func(a, b tool.Listed) int { return strings.Compare(a.Qualified(), b.Qualified()) })
}

// serversAfter returns tools of servers whose names follow after: up to limit, and no more than a
// list may hold, but one at least. If there are others, last is the name up to which none is
// missing.
func (b *Toolbox) serversAfter(ctx context.Context, t id.TenantID, after string, limit int) (out []tool.Listed, last string, err error) {
	bytes := 0
	all, err := b.catalog(ctx, t, after, math.MaxInt, func(s *store.ServerTools) bool {
		own := make([]tool.Listed, len(s.Specs))
		for i := range s.Specs {
			own[i] = tool.Listed{Spec: s.Specs[i], Server: &s.ID, At: &s.At}
		}
		byName(own)
		for i := range own {
			if own[i].Qualified() <= after || i > 0 && own[i].Name == own[i-1].Name {
				continue
			}
			if len(out) == limit || bytes >= api.MaxListBytes {
				return false
			}
			out = append(out, own[i])
			bytes += len(own[i].Description) + len(own[i].Schema)
		}
		return true
	})
	if err == nil && !all {
		last = out[len(out)-1].Qualified()
	}
	return out, last, err
}

// restAfter does the same for browser skills and builtin tools.
func (b *Toolbox) restAfter(ctx context.Context, t id.TenantID, after string, limit int) (out []tool.Listed, last string, err error) {
	v := b.Tables.View(t)
	specs, err := v.SkillTools(ctx)
	if err != nil {
		return nil, "", err
	}
	names := []tool.Listed{{Spec: tool.KBSearchSpec(nil)}}
	for _, s := range specs {
		names = append(names, tool.Listed{Spec: s})
	}
	names = slices.DeleteFunc(names, func(l tool.Listed) bool { return l.Qualified() <= after })
	byName(names)
	if len(names) > limit {
		names = names[:limit]
		last = names[limit-1].Qualified()
	}
	bytes := 0
	for chunk := range slices.Chunk(names, firstRead) {
		if bytes >= api.MaxListBytes {
			return out, out[len(out)-1].Qualified(), nil
		}
		var slugs []string
		for _, l := range chunk {
			if l.Source == tool.BrowserSkill && !slices.Contains(slugs, l.Owner) {
				slugs = append(slugs, l.Owner)
			}
		}
		skills, err := v.SkillsOf(ctx, slugs)
		if err != nil {
			return nil, "", err
		}
		full := map[string]tool.Spec{}
		for _, s := range skills {
			for _, spec := range skill.Tools(s.ID, s.Slug, s.Description, s.Definition, s.Policy) {
				full[spec.Qualified()] = spec
			}
		}
		for _, l := range chunk {
			if l.Source == tool.BrowserSkill {
				spec, ok := full[l.Qualified()]
				if !ok { // the skill was changed in between
					continue
				}
				l.Spec = spec
			}
			out = append(out, l)
			bytes += len(l.Description) + len(l.Schema)
		}
	}
	return out, last, nil
}
