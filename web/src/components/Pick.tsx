// SPDX-License-Identifier: Apache-2.0
// A drop-down below a chart: which line it shows.
interface Props {
  label: string;
  value: string;
  all: readonly string[];
  nameOf?: (value: string) => string;
  onPick: (value: string) => void;
}

export function Pick({ label, value, all, nameOf = (v) => v, onPick }: Props) {
  return (
    <select class="pick" aria-label={label} value={value} onChange={(e) => onPick(e.currentTarget.value)}>
      {all.map((v) => <option key={v} value={v}>{nameOf(v)}</option>)}
    </select>
  );
}
