// The page reads well without this: it adds sorting, and lights one trial in all charts at once.
(() => {
  const main = document.querySelector("main");
  const tip = document.getElementById("tip");
  const marks = new Map();
  for (const mark of document.querySelectorAll("[data-t]")) {
    const list = marks.get(mark.dataset.t) || [];
    list.push(mark);
    marks.set(mark.dataset.t, list);
  }

  // A <title> inside an SVG would pop up as a second, slow tooltip.
  for (const title of document.querySelectorAll(".plot svg title")) {
    const owner = title.parentNode;
    if (owner.tagName === "path") owner.dataset.tip = title.textContent;
    else { owner.setAttribute("aria-label", title.textContent); owner.removeAttribute("aria-labelledby");
      owner.setAttribute("aria-describedby", owner.querySelector("desc").id); }
    title.remove();
  }

  let lit = null;
  const light = (trial) => {
    if (trial === lit) return;
    for (const mark of marks.get(lit) || []) mark.classList.remove("on");
    for (const mark of marks.get(trial) || []) mark.classList.add("on");
    main.classList.toggle("lit", trial !== null);
    lit = trial;
  };
  // Curves are a pixel wide: look a little around the pointer.
  const around = [[0, 0], [0, 3], [0, -3], [3, 0], [-3, 0], [0, 6], [0, -6], [6, 0], [-6, 0]];
  document.addEventListener("pointermove", (event) => {
    let found = event.target.closest && event.target.closest("tr[data-t]");
    const inPlot = event.target.closest && event.target.closest(".plot");
    for (const [dx, dy] of inPlot ? around : []) {
      const hit = document.elementFromPoint(event.clientX + dx, event.clientY + dy);
      if (hit && hit.dataset.t) { found = hit; break; }
    }
    light(found ? found.dataset.t : null);
    tip.style.display = found && inPlot ? "block" : "none";
    if (!found || !inPlot) return;
    const named = marks.get(found.dataset.t).find((mark) => mark.dataset.tip);
    tip.textContent = named ? named.dataset.tip : "trial " + found.dataset.t;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  });

  const table = document.getElementById("trials");
  if (!table) return;
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, i) => {
    const cell = row.cells[i];
    const raw = cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v;
    return raw === "" || raw === "–" ? null : isNaN(raw) ? raw : Number(raw);
  };
  const compare = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  heads.forEach((head, i) => {
    if (head.dataset.fixed !== undefined) return;
    // Not a <button>: browsers leave those out of the heading that they repeat on printed pages.
    const button = document.createElement("span");
    button.setAttribute("role", "button");
    button.tabIndex = 0;
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      button.click();
    });
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [key(row, i), row]);
      rows.sort(([a], [b]) => (a === null) - (b === null) || (down ? compare(b, a) : compare(a, b)) || 0);
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
})();
