package layer

import "testing"

// TestStampsDoNotHideAChange has files whose size and times are the base's, as
// whoever wants to hide a change makes them, and as archives do.
func TestStampsDoNotHideAChange(t *testing.T) {
	for _, test := range []struct {
		name, edit string
		want       []string
	}{
		{"written to", "printf xx >f; touch -d 2001-01-01 f", []string{"M f file"}},
		{"another's place", "mv f g", []string{"D f file", "M g file"}},
		{"long, written to at its end", "printf x | dd of=long bs=1 seek=199999 conv=notrunc status=none; touch -d 2001-01-01 long", []string{"M long file"}},
		{"longer than what is compared", "chmod 600 huge; chmod 644 huge", []string{"M huge file"}},
		{"only opened", ": >>f; : >>long; : >>g; chmod 600 f; chmod 644 f", []string{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOverlay(t)
			sh(t, o.base, "printf aa >f; printf bb >g; head -c 200000 /dev/zero >long; truncate -s 67174400 huge; touch -d 2001-01-01 *")
			o.push()
			sh(t, o.merged, test.edit)
			expect(t, "changes", shorts(list(t, o.stack(), Options{})), test.want)
		})
	}
}
