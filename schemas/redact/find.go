package redact

import "strings"

// pattern is a text to search for with the Knuth-Morris-Pratt algorithm. strings.Index can
// take time proportional to the product of the lengths if a text almost matches in many
// places.
type pattern struct {
	text string
	// back maps each count of matched bytes to the count that still matches with the next
	// possible start.
	back []int32
}

func newPattern(text string) *pattern {
	p := &pattern{text: text, back: make([]int32, len(text)+1)}
	fit := 0
	for i := 1; i < len(text); i++ {
		for fit > 0 && text[i] != text[fit] {
			fit = int(p.back[fit])
		}
		if text[i] == text[fit] {
			fit++
		}
		p.back[i+1] = int32(fit)
	}
	return p
}

// search is the search for one pattern. It passes over the text once.
type search struct {
	*pattern
	in    string
	at    int // the first byte not yet compared
	fit   int // bytes of the pattern that match before at
	from  int // start of the match
	steps int
}

// next advances to the next match, which may overlap the previous one; false means the end.
func (s *search) next() bool {
	for s.at < len(s.in) {
		s.steps++
		if s.fit == 0 {
			skip := strings.IndexByte(s.in[s.at:], s.text[0])
			if skip < 0 {
				break
			}
			s.at += skip + 1
			s.fit = 1
		} else {
			c := s.in[s.at]
			for s.fit > 0 && s.text[s.fit] != c {
				s.fit = int(s.back[s.fit])
				s.steps++
			}
			if s.fit == 0 {
				continue // retry the byte as the first one
			}
			s.fit++
			s.at++
		}
		if s.fit == len(s.text) {
			s.from = s.at - s.fit
			s.fit = int(s.back[s.fit])
			return true
		}
	}
	s.at = len(s.in)
	return false
}

// finder searches a text for several patterns: the earliest match wins, then the pattern that
// is first in the list.
type finder struct {
	searches []search // those with a match ahead
	end      int      // end of the last match
}

func newFinder(patterns []*pattern, in string) *finder {
	f := &finder{}
	for _, p := range patterns {
		if s := (search{pattern: p, in: in}); s.next() {
			f.searches = append(f.searches, s)
		}
	}
	return f
}

// next returns the next match after the previous one.
func (f *finder) next() (from, to int, ok bool) {
	ahead := f.searches[:0]
	for _, s := range f.searches {
		more := true
		for more && s.from < f.end {
			more = s.next()
		}
		if !more {
			continue
		}
		ahead = append(ahead, s)
		if !ok || s.from < from {
			from, to, ok = s.from, s.from+len(s.text), true
		}
	}
	f.searches, f.end = ahead, to
	return from, to, ok
}
