package source

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// A challenge is a way of authentication that a server offers (RFC 9110, section 11.3).
type challenge struct {
	scheme     string // in small letters
	parameters map[string]string
}

const authenticateField = "Www-Authenticate"

// chooseChallenge leaves the best challenge in the header of an answer: Bearer, else Basic. go-containerregistry v0.22.1
// reads the first challenge of each field, and takes the first Basic or Bearer. A header without a usable challenge stays.
func chooseChallenge(header http.Header) {
	var best challenge
	for _, c := range challenges(header) {
		if c.usable() && (best.scheme == "" || best.scheme == "basic" && c.scheme == "bearer") {
			best = c
		}
	}
	if best.scheme != "" {
		header.Set(authenticateField, best.String())
	}
}

// usable says whether this program knows the way. A token needs the address of its server.
func (c challenge) usable() bool {
	realm, err := url.Parse(c.parameters["realm"])
	return c.scheme == "basic" || c.scheme == "bearer" && err == nil && realm.Host != "" && (realm.Scheme == "https" || realm.Scheme == "http")
}

// unknownWays tells the ways of an answer if this program knows none of them.
func unknownWays(response *http.Response) string {
	all := challenges(response.Header)
	if response.StatusCode != http.StatusUnauthorized || len(all) == 0 || slices.ContainsFunc(all, challenge.usable) {
		return ""
	}
	var names []string
	for _, c := range all {
		names = append(names, c.scheme)
	}
	return ", and asks for " + line(strings.Join(names, ", "), 60) + ", where this program knows basic, and bearer with a realm"
}

var quoter = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// String is the challenge as the text of a field, with the parameters that the library uses. The library stops at an
// empty one.
func (c challenge) String() string {
	var all []string
	for _, name := range []string{"realm", "service", "scope"} {
		if value := c.parameters[name]; value != "" {
			all = append(all, name+`="`+quoter.Replace(value)+`"`)
		}
	}
	return c.scheme + " " + strings.Join(all, ",")
}

// challenges are those of all fields of a header. Commas part challenges, and also the parameters of a challenge: an
// element NAME=VALUE belongs to the challenge before (section 11.6.1).
func challenges(header http.Header) (all []challenge) {
	for _, field := range header.Values(authenticateField) {
		first := len(all)
		for _, element := range elements(field) {
			if name, value, ok := parameter(element); ok {
				if len(all) > first {
					all[len(all)-1].set(name, value)
				}
				continue
			}
			scheme, rest, _ := strings.Cut(element, " ")
			all = append(all, challenge{strings.ToLower(scheme), map[string]string{}})
			if name, value, ok := parameter(strings.TrimSpace(rest)); ok {
				all[len(all)-1].set(name, value)
			}
		}
	}
	return all
}

// set keeps the first value of a parameter.
func (c challenge) set(name, value string) {
	if _, has := c.parameters[name]; !has {
		c.parameters[name] = value
	}
}

// elements are the elements of a list. A comma within quotes parts nothing.
func elements(field string) (all []string) {
	start, quoted := 0, false
	for i := 0; i <= len(field); i++ {
		switch {
		case i == len(field) || field[i] == ',' && !quoted:
			if element := strings.TrimSpace(strings.ReplaceAll(field[start:i], "\t", " ")); element != "" {
				all = append(all, element)
			}
			start = i + 1
		case field[i] == '"':
			quoted = !quoted
		case field[i] == '\\' && quoted && i+1 < len(field):
			i++
		}
	}
	return all
}

// parameter reads NAME=VALUE. The name is in small letters. A token68, such as that of Negotiate, is no parameter.
func parameter(element string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(element, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	if !ok || name == "" || strings.ContainsAny(name, " \"") || strings.Trim(value, "=") == "" {
		return "", "", false
	}
	if !strings.HasPrefix(value, `"`) {
		return strings.ToLower(name), value, true
	}
	var text strings.Builder
	for i := 1; i < len(value); i++ {
		switch {
		case value[i] == '"':
			return strings.ToLower(name), text.String(), i == len(value)-1
		case value[i] == '\\' && i+1 < len(value):
			i++
		}
		text.WriteByte(value[i])
	}
	return "", "", false // without an end
}
