// SPDX-License-Identifier: Apache-2.0
// Where the mark is, and how far from it the crosshair.
import { elapsed, ns } from "../format";
import { useStore } from "../store";

export function Mark() {
  const mark = useStore((s) => s.mark);
  const cursor = useStore((s) => s.cursor);
  if (mark === null) return null;
  const away = cursor === null ? 0 : cursor - mark;
  return (
    <span class="s" id="mark">
      Mark at {elapsed(mark)}
      {away !== 0 && `; the crosshair is ${ns(Math.abs(away))} ${away > 0 ? "after" : "before"} it`}
    </span>
  );
}
