/** Where the page begins. */
document.title = JSON.parse(document.getElementById("page")?.textContent ?? '{"title": "Pinfold"}').title;
